"""A learner in a directory: saving, loading, going back, and exactness."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import GradientState
from helpers.learners import FAST, STREAM, TEXTS, create, taught
from helpers.toys import domain_stream, save_tiny_bert, small
from torch.utils.data import DataLoader

from holdfast import Learner
from holdfast.data.tasks import Split, held_out
from holdfast.errors import HoldfastError
from holdfast.heads import SLDAHead
from holdfast.learning.directory import named
from holdfast.methods import METHODS
from holdfast.models import build_classifier
from holdfast.storage.generations import Store

# ---- the three-line example ---------------------------------------------------------------------------


def test_learn_save_load_predict(tiny_bert, tmp_path):
    learner = taught(tiny_bert)
    assert learner.save(tmp_path / "mine") == 1
    other = Learner.load(tmp_path / "mine")
    assert other.classes_ == learner.classes_ == [*STREAM.tasks[0].labels, *STREAM.tasks[1].labels]
    assert np.array_equal(other.predict_proba(TEXTS), learner.predict_proba(TEXTS))
    assert other.predict(TEXTS) == learner.predict(TEXTS)
    task = STREAM.tasks[0]
    assert other.score(task.test.texts, task.test.labels) == other.score(task.test) > 0.9


def test_probabilities_are_in_the_order_of_the_classes(tiny_bert):
    learner = taught(tiny_bert)
    likely = learner.predict_proba(TEXTS)
    assert likely.shape == (len(TEXTS), len(learner.classes_))
    assert np.allclose(likely.sum(1), 1)
    assert [learner.classes_[i] for i in likely.argmax(1)] == learner.predict(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["seq", "la", "slda", "rda", "klda", "ranpac", "first+slda", "la+slda", "auto"]
)
def test_every_kind_of_learner_goes_on_where_it_was(tiny_bert, tmp_path, method):
    learner = taught(tiny_bert, method, tasks=1)
    learner.save(tmp_path)
    other = Learner.load(tmp_path)
    task = STREAM.tasks[1]
    for one in (learner, other):
        one.learn(task.train.texts, task.train.labels)
    assert other.predict(TEXTS) == learner.predict(TEXTS)
    numbers = [[{**entry, "serial": ""} for entry in one.history] for one in (other, learner)]
    assert numbers[0] == numbers[1]  # a serial number is random
    assert [entry["new"] for entry in other.history] == [2, 2]


def test_a_copy_goes_on_by_itself(tiny_bert):
    """A training of somebody else that was interrupted leaves references in Accelerate's global state."""
    learner = taught(tiny_bert, tasks=1)
    gradients, loader = GradientState(), DataLoader(TEXTS)
    gradients._add_dataloader(loader)
    try:
        other = pickle.loads(pickle.dumps(learner))
    finally:
        gradients._remove_dataloader(loader)
    task = STREAM.tasks[1]
    other.learn(task.train.texts, task.train.labels)
    assert len(other.classes_) == len(learner.classes_) + 2
    learner.learn(task.train.texts, task.train.labels)
    assert other.predict(TEXTS) == learner.predict(TEXTS)


def test_what_the_user_fixed_stays_fixed(tiny_bert, tmp_path):
    learner = taught(tiny_bert, shrinkage=0.123, weighting="counts")
    learner.save(tmp_path)
    other = Learner.load(tmp_path)
    assert other.method.shrinkage == 0.123
    assert other.model.head.chosen == learner.model.head.chosen
    assert other.fixed == {"shrinkage", "weighting"}


def test_what_cannot_be_is_refused(tiny_bert):
    for method, options, expected in (
        ("slda", {"shrinkage": 2.0}, "shrinkage=2.0: expected .* of at most 1"),
        ("slda", {"scatter": "pooled", "weighting": "covariance"}, "per-class"),
        ("klda", {"widths": (-1.0,)}, "above 0"),
        ("slda", {"lamb": 1.0}, "unknown hyper-parameter 'lamb'"),
    ):
        with pytest.raises(HoldfastError, match=expected):
            create(tiny_bert, method, **options)
    learner = create(tiny_bert)
    with pytest.raises(HoldfastError, match="no labels yet"):
        learner.predict(["x"])
    with pytest.raises(HoldfastError, match="unknown label"):
        learner.forget("x")


def test_joint_training_is_refused(tiny_bert):
    with pytest.raises(HoldfastError, match="all tasks at once"):
        create(tiny_bert, "mtl")
    with pytest.raises(HoldfastError, match="did you mean 'slda'"):
        create(tiny_bert, "sldaa")


# ---- on disk ------------------------------------------------------------------------------------------


def test_nothing_of_any_text_is_on_disk(tiny_bert, tmp_path):
    secrets = [f"swordfish{i} music{i % 3}" for i in range(12)]
    for method in ("auto", "la"):
        learner = create(tiny_bert, method)
        learner.learn([*secrets, *(f"light{i % 3}" for i in range(12))], ["open"] * 12 + ["shut"] * 12)
        learner.save(tmp_path / method)
        for path in (tmp_path / method).rglob("*"):
            if path.is_file():
                assert b"swordfish" not in path.read_bytes(), path


def test_only_safetensors_and_json(tiny_bert, tmp_path):
    taught(tiny_bert).save(tmp_path)
    kinds = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert kinds == {"CURRENT", "README.md", ".lock", "manifest.json", "state.safetensors"}
    pointer = json.loads((tmp_path / "CURRENT").read_text())
    assert (pointer["current"], pointer["generations"]) == (1, [1])


def test_old_generations_are_kept_as_long_as_asked(tiny_bert, tmp_path):
    learner = taught(tiny_bert, tasks=1, generations=3)
    for n in range(1, 6):
        assert learner.save(tmp_path) == n
    assert Store(tmp_path).generations == [3, 4, 5]
    assert sorted(path.name for path in tmp_path.glob("generation-*")) == [
        f"generation-{n:06d}" for n in (3, 4, 5)
    ]


def test_rollback_goes_back_and_forth(tiny_bert, tmp_path):
    learner = create(tiny_bert)
    for task in STREAM:
        learner.learn(task.train.texts, task.train.labels)
        learner.save(tmp_path)
    store = Store(tmp_path)
    store.rollback(1)
    assert len(Learner.load(tmp_path).classes_) == 2
    store.rollback(3)
    assert len(Learner.load(tmp_path).classes_) == 6
    store.rollback(2)
    other = Learner.load(tmp_path)
    assert other.save(tmp_path) == 4, "generation numbers are never reused"
    with pytest.raises(HoldfastError, match=r"no generation 9; there are 1, 2, 3, 4"):
        store.rollback(9)


def test_a_damaged_generation_is_not_gone_back_to(tiny_bert, tmp_path):
    learner = taught(tiny_bert, tasks=1)
    learner.save(tmp_path)
    learner.save(tmp_path)
    file = tmp_path / "generation-000001" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(HoldfastError, match="not a readable Holdfast state"):
        Store(tmp_path).rollback(1)
    assert Store(tmp_path).current == 2


def test_another_model_under_the_same_name_is_refused(tmp_path):
    place = tmp_path / "model"
    save_tiny_bert(place)
    taught(str(place)).save(tmp_path / "mine")
    shutil.rmtree(place)
    save_tiny_bert(place, layers=1)
    with pytest.raises(HoldfastError, match=r"another encoder than .*: its weights and config differ"):
        Learner.load(tmp_path / "mine")


def test_the_fingerprint_is_the_encoders_own(tiny_bert, one_layer):
    plain, adapted = create(tiny_bert, "slda"), create(tiny_bert, "la+slda")
    assert plain.origin.fingerprint == adapted.origin.fingerprint
    assert create(one_layer).origin.fingerprint != plain.origin.fingerprint


def test_a_pooler_that_is_random_is_no_part_of_the_fingerprint(tmp_path):
    """Many checkpoints have no pooler; transformers then initialises a random one."""
    from safetensors.torch import load_file, save_file

    place = tmp_path / "bare"
    save_tiny_bert(place)
    weights = load_file(place / "model.safetensors")
    bare = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    assert len(bare) < len(weights)
    save_file(bare, place / "model.safetensors", metadata={"format": "pt"})
    taught(str(place)).save(tmp_path / "mine")
    assert len(Learner.load(tmp_path / "mine").classes_) == 4


def test_a_learner_of_unknown_making_is_not_saved(tiny_bert, tmp_path):
    bare = Learner(build_classifier(tiny_bert, small(), method=METHODS["slda"]()), METHODS["slda"]())
    bare.learn(STREAM.tasks[0])
    with pytest.raises(HoldfastError, match=r"Learner\.create"):
        bare.save(tmp_path / "mine")
    with pytest.raises(HoldfastError, match="same frozen encoder"):
        bare.merge(taught(tiny_bert))
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("texts", "labels", "said"),
    [
        (["a b", "c d"], [0, 1], r"label 1 is not text but 0 \(int\)"),
        (["a b", "c d"], ["x", None], "label 2 is not text but None"),
        ([1.5, "c d"], ["x", "y"], "text 1 is not text but 1.5"),
        ("a b", ["x"], "the texts are one string"),
        (["a b"], ["x", "y"], "1 texts but 2 labels"),
    ],
)
def test_what_is_not_text_is_not_learnt(tiny_bert, texts, labels, said):
    learner = create(tiny_bert)
    with pytest.raises(HoldfastError, match=said):
        learner.learn(texts, labels)
    assert learner.classes_ == []


def test_arrays_are_as_good_as_lists(tiny_bert):
    task = STREAM.tasks[0]
    learner = create(tiny_bert)
    learner.learn(np.array(task.train.texts), np.array(task.train.labels))
    assert learner.predict(np.array(task.test.texts)) == learner.predict(task.test.texts)
    assert learner.score(np.array(task.test.texts), np.array(task.test.labels)) > 0.9
    with pytest.raises(HoldfastError, match="one string"):
        learner.predict("light0")


def test_a_state_of_another_version_is_one_line(tiny_bert, tmp_path):
    learner = taught(tiny_bert)
    learner.save(tmp_path)
    saved = Store(tmp_path).load()
    meta, damaged = saved.sections, r"it is damaged, or was made by another version"
    strange = [
        ({**meta, "encoder": meta["encoder"] | {"zeal": 1}}, f"unknown field 'zeal': {damaged}"),
        (
            {**meta, "learner": meta["learner"] | {"settings": {"zeal": 1}}},
            f"unknown field 'zeal': {damaged}",
        ),
        ({**meta, "learner": meta["learner"] | {"hparams": {"zeal": 1}}}, f"unknown field 'zeal': {damaged}"),
        ({**meta, "zeal": {}}, f"unknown section 'zeal': {damaged}"),
        ({name: value for name, value in meta.items() if name != "learner"}, "lacks the section 'learner'"),
    ]
    for changed, said in strange:
        Store(tmp_path).commit(saved.tensors, changed)
        with pytest.raises(HoldfastError, match=said):
            Learner.load(tmp_path)
    Store(tmp_path).commit({**saved.tensors, "zeal": {}}, meta)
    with pytest.raises(HoldfastError, match="unknown section 'zeal'"):
        Learner.load(tmp_path)


def test_more_than_the_encoder_reads_is_refused(tiny_bert):
    with pytest.raises(HoldfastError, match=r"max_length 500 is too high: .* reads only 160 tokens"):
        Learner.create(tiny_bert, "slda", settings=replace(FAST, max_length=500))


def test_left_out_sentences_leave_traces_too(tiny_bert):
    """With two sentences none is held out for validation, but the shrinkage depends on them."""
    learner = create(tiny_bert)
    learner.learn(["light0 red", "light1 red", "mail0 blue", "mail1 blue"], ["light"] * 2 + ["mail"] * 2)
    assert not learner.model.head.heat.any()
    assert "shrinkage" in learner.forget("mail")


def test_a_registered_name_wins_over_a_folder_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("minilm", "mine"):
        Path(name).mkdir()
    assert (named("minilm"), named("mine")) == ("minilm", str(tmp_path / "mine"))


def test_the_card_says_what_it_is(tiny_bert, tmp_path):
    learner = taught(tiny_bert)
    learner.save(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: holdfast\n")
    assert "4 labels, 2 lessons" in card
    assert re.search(r"\| lesson 1 \| 24 \| 2 \| \d+\.\d \| 0\.000 \|", card)
    assert all(f"`{label}`" in card for label in learner.classes_)


def test_a_runs_own_state_is_not_a_learner(tmp_path):
    Store(tmp_path).commit({"weights": {}}, {"learner": {}, "run": {}})
    with pytest.raises(HoldfastError, match="not a learner's"):
        Learner.load(tmp_path)


# ---- the trunk ----------------------------------------------------------------------------------------


def test_an_untouched_trunk_is_the_encoder_as_it_came(tiny_bert):
    plain, adapted = create(tiny_bert, "slda"), create(tiny_bert, "la+slda")
    assert adapted.model.adaptable
    assert not adapted.model.adapted
    assert torch.equal(plain.model.embed(TEXTS), adapted.model.embed(TEXTS))


def test_the_throw_away_head_does_not_stay(tiny_bert):
    learner = taught(tiny_bert, "first+slda", tasks=1)
    assert learner.model.adapted
    tensors, _ = learner.state()
    assert not [name for name in tensors["weights"] if "head" in name]
    assert isinstance(learner.model.head, SLDAHead)


def test_any_encoder_will_do_for_a_closed_form_head(tmp_path):
    """An encoder without adapter support: slda works, auto stays frozen and says so, la+slda fails."""
    from transformers import AutoTokenizer, DebertaConfig, DebertaModel

    save_tiny_bert(tmp_path / "tiny")
    words = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    place = tmp_path / "other"
    config = DebertaConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    DebertaModel(config).save_pretrained(place)
    words.save_pretrained(place)
    learner = taught(str(place), "slda")
    assert len(learner.predict(TEXTS)) == len(TEXTS)
    auto = Learner.create(str(place), "auto", settings=FAST, thr=1.0)
    task = domain_stream().tasks[0]
    auto.learn(task.train.texts, task.train.labels)
    assert auto.history[-1]["chose"] == "frozen"
    with pytest.raises(HoldfastError, match="no adapters for the model type 'deberta'"):
        create(str(place), "la+slda")


# ---- held out -----------------------------------------------------------------------------------------


def test_a_tenth_is_held_out_of_every_label():
    split = Split.of(
        [(f"{label} {i}", label) for label, n in (("a", 40), ("b", 3), ("c", 2)) for i in range(n)]
    )
    train, valid = held_out(split)
    assert valid.counts() == {"a": 4, "b": 1}
    assert train.counts() == {"a": 36, "b": 2, "c": 2}
    assert sorted(train.texts + valid.texts) == sorted(split.texts)
    more = Split.of([*zip(split.texts, split.labels, strict=True), *((f"d {i}", "d") for i in range(10))])
    assert set(valid.texts) <= set(held_out(more)[1].texts), (
        "a new label does not change the split of the others"
    )


@pytest.mark.parametrize(("method", "values"), [("slda", {"scatter": "pooled"}), ("klda", {})])
def test_forgetting_names_every_kind_of_trace(one_layer, method, values):
    traces = taught(one_layer, method, **values).forget(STREAM.tasks[0].labels[0])
    assert "the pooled sums of all labels" in traces
    assert "settings chosen on held-out sentences" in traces

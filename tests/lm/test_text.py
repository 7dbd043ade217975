"""Prompt/answer pairs: reading files, tokenising, built-in and public data."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.tiny import WORDS, llama, pairs, sequences, tokenizer

from holdfast.errors import HoldfastError
from holdfast.lm import embedded, tasks
from holdfast.lm.baselines import flow_weights, wise_ft
from holdfast.lm.evaluate import output_loss
from holdfast.lm.text import Pair, collate, encode, read_pairs
from holdfast.maths.equations import merge
from holdfast.maths.losses import IGNORED

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(
    not (DATA / "gsm8k").is_dir(), reason="needs ../shared/data with gsm8k and mbpp"
)


def lines(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize(
    "names", [("prompt", "answer"), ("question", "answer"), ("query", "response"), ("instruction", "output")]
)
def test_files_with_the_usual_names(tmp_path: Path, names: tuple[str, str]) -> None:
    rows = [{names[0]: "a", names[1]: "b", "type": "x"}, {names[0]: "c", names[1]: "d"}]
    asked = names[0] != "prompt"
    expected = [Pair("Question: a\nAnswer:", " b"), Pair("Question: c\nAnswer:", " d")]
    assert read_pairs(lines(tmp_path / "f.jsonl", *rows)) == (
        expected if asked else [Pair("a", "b"), Pair("c", "d")]
    )


def test_a_text_may_hold_other_line_separators(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(json.dumps({"prompt": "a\u2028b\x0c", "answer": "c"}, ensure_ascii=False))
    assert read_pairs(path) == [Pair("a\u2028b\x0c", "c")]


def test_an_instruction_comes_with_its_input(tmp_path: Path) -> None:
    row = {"instruction": "Translate", "input": "chat", "output": "cat"}
    assert read_pairs(lines(tmp_path / "f.jsonl", row)) == [
        Pair("Question: Translate\nchat\nAnswer:", " cat")
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (['{"prompt": "a", "answer": "b"}', '{"prompt": '], "line 2: broken JSON"),
        (["[1]"], "line 1: not a JSON object"),
        ([{"text": "a"}], "line 1: has text; it needs one of these pairs of fields: prompt and answer"),
        ([{"prompt": "a", "answer": "b"}, {"prompt": "c"}], "line 2: the field 'answer' is missing"),
        ([{"prompt": "a", "answer": 3}], "line 1: the field 'answer' is missing or not text"),
        ([{"prompt": "a", "answer": "  "}], "line 1: the field 'answer' is empty"),
        (
            [r'{"prompt": "a \ud800", "answer": "b"}'],
            "line 1: the field 'prompt' holds an unpaired",
        ),
        ([""], "holds no examples"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(
    tmp_path: Path, rows: list[object], expected: str
) -> None:
    path = lines(tmp_path / "f.jsonl", *rows)
    with pytest.raises(HoldfastError) as caught:
        read_pairs(path)
    assert expected in str(caught.value)
    assert "f.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "bom.jsonl").write_text('{"prompt": "a", "answer": "b"}\n', encoding="utf-8-sig")
    assert read_pairs(tmp_path / "bom.jsonl") == [Pair("a", "b")]


def test_public_data_that_is_not_there_says_where_it_is_from(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"train\.jsonl does not exist; download .*grade-school-math"):
        tasks.gsm8k(tmp_path, "train")
    with pytest.raises(HoldfastError, match=r"mbpp\.jsonl does not exist; download .*google-research"):
        tasks.mbpp(tmp_path, "test")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9"}')
    for name, expected in (("none.jsonl", "No such file"), ("latin.jsonl", "not UTF-8")):
        with pytest.raises(HoldfastError, match=expected):
            read_pairs(tmp_path / name)


def test_tokens_by_hand() -> None:
    words = {word: i + 3 for i, word in enumerate(WORDS)}
    found = encode([Pair("w1 w2", "w3")], tokenizer(), 10)
    row = found[0]
    assert row["input_ids"].tolist() == [words["w1"], words["w2"], words["w3"], 2]
    assert row["labels"].tolist() == [IGNORED, IGNORED, words["w3"], 2], (
        "the end-of-text token is an output token"
    )


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_the_digest_is_that_of_nested_tuples(count: int) -> None:
    """Record names depend on the digest."""
    data = sequences(9).first(count)
    whole = repr((tuple(tuple(ids) for ids in data.ids), data.starts))
    assert data.digest() == hashlib.sha256(whole.encode()).hexdigest()[:16]
    assert all(row["input_ids"].dtype == row["labels"].dtype == torch.long for row in data)


def test_long_sequences_are_cut_and_counted() -> None:
    long = Pair("w1 w2", "w3 w4 w5 w6")
    found = encode([long, Pair("w1 w2 w3 w4 w5", "w1"), Pair("w1", "w2")], tokenizer(), 5)
    assert [len(ids) for ids in found.ids] == [5, 3]
    assert (found.cut, found.dropped) == (1, 1)
    with pytest.raises(HoldfastError, match="--max-tokens"):
        encode([Pair("w1 w2 w3", "w4")], tokenizer(), 3)


def test_padding_is_told_by_the_mask_not_by_the_token() -> None:
    rows = encode([Pair("w1", "w2 w3 w4"), Pair("w1", "w2")], tokenizer(), 10)
    batch = collate(list(rows), pad=2)
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch["labels"][1].tolist()[2:] == [2, IGNORED, IGNORED], (
        "the end-of-text token counts, padding does not"
    )


def test_the_loss_does_not_depend_on_batches() -> None:
    model, data = llama(), encode(pairs(7), tokenizer(), 32)
    found = [output_loss(model, data, 2, batch) for batch in (1, 3, 7)]
    assert (
        found[0].tokens
        == found[2].tokens
        == sum(len(i) - s for i, s in zip(data.ids, data.starts, strict=True))
    )
    for one in found[1:]:
        assert one.loss == pytest.approx(found[0].loss, rel=1e-5)
        assert one.accuracy == found[0].accuracy
    with torch.no_grad():  # token by token
        total = 0.0
        for row in data:
            logits = model.eval()(input_ids=row["input_ids"][None]).logits[0].log_softmax(-1)
            total -= sum(
                float(logits[t - 1, y]) for t, y in enumerate(row["labels"].tolist()) if y != IGNORED
            )
    assert found[0].loss == pytest.approx(total / found[0].tokens, rel=1e-5)


def test_the_embedded_abilities_are_split_for_good() -> None:
    for items in (embedded.functions(), embedded.problems()):
        parts = {part: embedded.part_of(items, part) for part in ("train", "valid", "test")}
        assert all(len(part) >= 60 for part in parts.values())
        seen = [pair for part in parts.values() for pair in part]
        assert len(seen) == len(items)
    for pair in embedded.functions()[:50]:
        compile(pair.prompt + pair.answer, "<function>", "exec")


def test_the_problems_are_right() -> None:
    for pair in embedded.problems()[:300]:
        for line in pair.answer.strip().splitlines()[:-1]:
            for part in line.replace(".", " ").split(" = ")[:-1]:
                sum_, result = (
                    part.split()[-1],
                    line.split(f"{part.split()[-1]} = ")[1].split()[0].rstrip("."),
                )
                assert eval(sum_) == float(result), line
        assert tasks.final_number(pair.answer, strict=True) == tasks.final_number(pair.answer)


@pytest.mark.parametrize(
    ("text", "last", "strict"),
    [
        ("so 12+3 = 15.\n#### 15", "15", "15"),
        ("#### 1,234", "1234", "1234"),
        ("it costs $1,050.", "1050", None),
        ("-7 degrees", "-7", None),
        ("no idea", None, None),
        ("#### 5 and then 6", "6", "5"),
    ],
)
def test_final_numbers(text: str, last: str | None, strict: str | None) -> None:
    assert tasks.final_number(text) == last
    assert tasks.final_number(text, strict=True) == strict


@needs_data
def test_public_data_in_its_parts() -> None:
    counts = {part: len(tasks.gsm8k(DATA, part)) for part in ("train", "valid", "test")}
    assert counts == {"train": 7073, "valid": 400, "test": 1319}
    assert {part: len(tasks.programs(DATA, part)) for part in tasks.RANGES} == {
        **{"shots": 10, "test": 500, "valid": 90, "train": 374}
    }
    first = tasks.gsm8k(DATA, "train")[0]
    assert first.prompt.startswith("Question: Natalia sold clips")
    assert tasks.final_number(first.answer, strict=True) == "72"
    program = tasks.programs(DATA, "test")[0]
    assert "[BEGIN]" in program.prompt
    assert "\r" not in program.code


# ---- baselines --------------------------------------------------------------------------------------------


def test_averages_and_merges_by_hand() -> None:
    start, tuned = {"w": torch.tensor([0.0, 10.0])}, {"w": torch.tensor([4.0, 20.0])}
    assert wise_ft(start, tuned, 0.25)["w"].tolist() == [1.0, 12.5]
    past, new = {"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([3.0, 5.0])}
    torch.testing.assert_close(merge(start, tuned, past, new, 1.0)["w"], torch.tensor([3.0, 20.0]))
    torch.testing.assert_close(merge(start, tuned, past, new, 2.0)["w"], torch.tensor([2.0, 20.0]))


def test_easy_samples_count_more() -> None:
    model, data = llama(), encode(pairs(9), tokenizer(), 32)
    weights = flow_weights(model, data, 2, batch=4)
    losses = [output_loss(model, data.__class__((data.ids[i],), (data.starts[i],)), 2).loss for i in range(9)]
    order = sorted(range(9), key=lambda i: losses[i])
    assert [weights[i] for i in order] == sorted(weights, reverse=True)
    assert weights[order[4]] == pytest.approx(2.718281828**-1, rel=1e-4), "exp(-1) at the median"


def test_pairs_of_a_hub_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"query": "1 + 1?", "response": "2", "type": "GSM"},
        {"query": "2 + 2?", "response": "4", "type": "GSM"},
    ]
    hub = {"meta-math/MetaMathQA": {"test": [], "train": rows}}
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=hub.__getitem__))
    found = read_pairs("hf:meta-math/MetaMathQA")
    assert found[0] == Pair("Question: 1 + 1?\nAnswer:", " 2")
    assert len(found) == 2
    rows[1]["response"] = ""
    with pytest.raises(HoldfastError, match="MetaMathQA, row 2: the field 'response' is empty"):
        read_pairs("hf:meta-math/MetaMathQA")
    with pytest.raises(HoldfastError, match="check the name and the network"):
        read_pairs("hf:no/such")

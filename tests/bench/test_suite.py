"""Suites: the runs that a TOML file describes, and one-line errors for invalid files."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.bench import Spec
from holdfast.bench.spec import NAMED
from holdfast.errors import HoldfastError
from holdfast.methods import METHODS
from holdfast.studies.suites import SUITES, load_suite

PAPER = {"mtl", "seq", "adabop", "rp2f", "upgd", "ancl-mas", "ancl-lwf", "la"}
WITHOUT_SUITE = {"rda", "klda", "ranpac", "la-merge", "mas+slda"}
"""Methods that are in no suite on purpose."""
PRINTED = {"head": "preallocated", "logits": "all"}


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_shipped_suites_are_those_of_the_issue() -> None:
    assert set(SUITES) == {
        *(
            "quick",
            "paper",
            "paper-small",
            "modern-small",
            "thresholds",
            "tau",
            "strategies",
            "cost",
            "stable",
        )
    }
    for name in SUITES:
        assert load_suite(name).about


@pytest.mark.parametrize(
    ("name", "preset", "order"), [("paper", "full", "second"), ("paper-small", "small", "first")]
)
def test_the_paper_is_printed_with_all_its_methods(name: str, preset: str, order: str) -> None:
    suite = load_suite(name)
    assert {spec.method for spec in suite.specs} == PAPER
    assert len(suite.specs) == 2 * 3 * len(PAPER)
    for spec in suite.specs:
        assert spec.preset == preset
        # On annomi all labels appear in the first domain: the printed setting is the default.
        assert spec.stream == "annomi" or spec.set.items() >= PRINTED.items()
        method, _ = spec.make_method()
        if spec.method == "adabop":
            assert (method.selection, method.fraction) == ("fraction", 0.01)
        if spec.method == "upgd":
            assert method.order == order


def test_modern_small_adds_to_the_same_methods() -> None:
    suite = load_suite("modern-small")
    assert {spec.method for spec in suite.specs} == PAPER | {"mas", "frozen", "slda", "first+slda", "la+slda"}
    assert not any(PRINTED.keys() & spec.set.keys() for spec in suite.specs)


def test_the_stable_plan_is_tried_under_both_optimisers() -> None:
    suite = load_suite("stable")
    assert {spec.set["plan"] for spec in suite.specs} == {"stable"}
    for method in ("la", "mas", "seq"):
        found = [spec.set.get("optimizer", "adamw") for spec in suite.specs if spec.method == method]
        assert sorted(found) == ["adamw"] * 3 + ["sgd"] * 3
    for spec in suite.specs:
        spec.make_method()


def test_where_the_printed_setting_is_ours_a_run_is_made_once() -> None:
    paper, modern = (
        {spec.digest(): spec for spec in load_suite(f"{name}-small").specs} for name in ("paper", "modern")
    )
    shared = [paper[digest] for digest in paper.keys() & modern.keys()]
    assert {spec.stream for spec in shared} == {"annomi"}
    assert {spec.method for spec in shared} == PAPER - {"adabop"}, "the fraction differs"
    assert len(shared) == 3 * (len(PAPER) - 1)


def test_studies_share_records_with_the_paper() -> None:
    """{} in a list of variants is the method of the main table: it does not run twice in one folder."""
    paper = {spec.digest() for spec in load_suite("paper-small").specs}
    for name, shared in {"thresholds": 4, "tau": 2}.items():
        assert len(paper & {spec.digest() for spec in load_suite(name).specs}) == shared


def test_thresholds_and_tau_vary_what_they_should() -> None:
    seen = {(spec.method, spec.set.get("thr", 0.9)) for spec in load_suite("thresholds").specs} - {
        ("seq", 0.9)
    }
    assert seen == {(m, t) for m in ("ancl-lwf", "ancl-mas", "la") for t in (0.9, 0.8, 0.7, 0.6)}
    fractions = {s.set.get("fraction", 0.8) for s in load_suite("tau").specs if s.method == "la"}
    assert fractions == {0.9, 0.85, 0.8, 0.75, 0.7}
    grid = [spec for spec in load_suite("strategies").specs if spec.method == "la"]
    assert {spec.set["strategy"] for spec in grid} == {"kt", "cf", "balance"}
    assert all(spec.tasks == 2 for spec in grid)
    for spec in grid:  # one training each: no search is left
        assert {"tau", "down", "up"} <= spec.set.keys()


def test_a_block_stands_for_all_its_combinations(tmp_path: Path) -> None:
    path = written(
        tmp_path / "own.toml",
        """
about = "mine"
streams = ["home"]
seeds = [0, 1]
per_class = 5
set = { epochs = 2 }

[[runs]]
methods = ["seq"]
set = { patience = 1 }

[[runs]]
methods = ["mas"]
seeds = [3]
variants = [{}, { lam = inf }]
grid = { thr = [0.5, 0.6], rates = [[0.1, 0.2]] }
""",
    )
    suite = load_suite(path)
    assert (suite.name, suite.about, suite.view, suite.share) == ("own", "mine", "main", True)
    assert all(s.set["plan"] == "paper" and s.set["optimizer"] == "adamw" for s in suite.specs)
    own = [(s.method, s.seed, {n: v for n, v in s.set.items() if n not in NAMED}) for s in suite.specs]
    assert own == [
        ("seq", 0, {"epochs": 2, "patience": 1}),
        ("seq", 1, {"epochs": 2, "patience": 1}),
        ("mas", 3, {"epochs": 2, "rates": [0.1, 0.2], "thr": 0.5}),
        ("mas", 3, {"epochs": 2, "rates": [0.1, 0.2], "thr": 0.6}),
        ("mas", 3, {"epochs": 2, "lam": "inf", "rates": [0.1, 0.2], "thr": 0.5}),
        ("mas", 3, {"epochs": 2, "lam": "inf", "rates": [0.1, 0.2], "thr": 0.6}),
    ]
    assert all(spec.per_class == 5 for spec in suite.specs)
    manifest = suite.manifest()
    assert [run["digest"] for run in manifest["runs"]] == [spec.digest() for spec in suite.specs]


def test_parts_can_be_replaced_and_picked() -> None:
    suite = load_suite("paper-small", {"streams": ["home"], "seeds": [1, 2], "model": "x/y"}, ["la", "seq"])
    assert {(s.stream, s.method, s.seed, s.model) for s in suite.specs} == {
        ("home", method, seed, "x/y") for method in ("la", "seq") for seed in (1, 2)
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("streams = [", "not a TOML file"),
        ('streams = ["home"]\nmethod = ["seq"]', "did you mean 'methods'"),
        ('streams = ["home"]\nmethods = ["sequ"]', "runs 1: unknown method 'sequ' (did you mean 'seq'?)"),
        ('streams = ["hom"]\nmethods = ["seq"]', "did you mean 'home'"),
        ('streams = ["home"]\nmethods = ["seq"]\nset = { epoch = 3 }', "did you mean 'epochs'"),
        ('streams = ["home"]\nmethods = ["seq"]\nset = { epochs = "x" }', "expected a whole number"),
        ('streams = ["home"]\nmethods = ["seq"]\nset = { lam = 3 }', "unknown setting 'lam'"),
        ('streams = ["home"]\nmethods = "seq"', "methods must be a list"),
        ('streams = ["home"]\nmethods = ["seq"]\nthreads = [1]', "threads must be a single value"),
        ('streams = ["home"]\nmethods = ["seq"]\nseeds = [true]', "seeds cannot be True"),
        ('streams = ["home"]\nmethods = ["seq"]\ntasks = 1', "tasks: at least 2"),
        ('streams = ["home"]\nmethods = ["seq"]\ntasks = 0', "tasks: at least 2"),
        ('streams = ["home"]\nmethods = ["seq"]\nthreads = 0', "threads: at least 1"),
        ("runs = 3", "begin each with a line [[runs]]"),
        ('streams = ["home"]\nmethods = ["seq"]\nview = "mian"', "did you mean 'main'"),
        ('streams = ["home"]\nmethods = ["seq"]\npreset = "tiny"', "unknown preset"),
        ('streams = ["home"]\nmethods = ["mas"]\ngrid = { thr = 0.5 }', "grid: thr must be a list"),
        ('methods = ["seq"]', "no streams; add"),
        ("runs = [1]", "begin each with a line [[runs]]"),
        ("runs = []", "no runs; give"),
        ('streams = ["home"]\nmethods = ["mas"]\nseeds = []', "no seeds; add"),
        ('streams = ["home"]\nmethods = ["mas"]\norders = []', "no orders; add"),
        ('streams = ["home"]\nmethods = ["mas"]\nvariants = []', "no variants; add"),
        ('streams = ["home"]\nmethods = ["mas"]\ngrid = { thr = [] }', "grid: thr is empty"),
        (f"seeds = {'[' * 5000}", "not a TOML file"),
        (f"threads = {'9' * 5000}", "not a TOML file"),
        ('streams = ["home"]\nmethods = ["mas"]\nthreads = 100000', "threads: at most 4096, not 100000"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path / "bad.toml", text)
    with pytest.raises(HoldfastError) as caught:
        load_suite(path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(path)


def test_an_unknown_suite_is_suggested() -> None:
    with pytest.raises(HoldfastError, match=r"did you mean 'quick'.*path of a TOML file"):
        load_suite("quik")
    with pytest.raises(HoldfastError, match=r"^nosuite.toml does not exist"):
        load_suite("nosuite.toml")
    with pytest.raises(HoldfastError, match="quick: unknown method 'la-mas'"):
        load_suite("quick", None, ["la-mas"])


def test_every_method_is_in_some_table_or_says_why_not() -> None:
    benchmarked = {spec.method for name in SUITES for spec in load_suite(name).specs}
    assert set(METHODS) - benchmarked == WITHOUT_SUITE, (
        "add a new method to a suite in holdfast/studies/suites/, or its name to WITHOUT_SUITE in this file"
    )


def test_what_is_set_by_name_is_over_the_cap() -> None:
    asked = Spec.create(method="seq", stream="home", per_class=10, settings=["train_per_class=25"])
    assert asked.settings().train_per_class == 25
    assert Spec.create(method="seq", stream="home", per_class=10).settings().train_per_class == 10

"""Settings and hyper-parameters: parsing user input, and conversion to JSON and back."""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from holdfast.errors import HoldfastError
from holdfast.fields import fields_of, from_json, parse, setting, to_json, unknown
from holdfast.methods import METHODS
from holdfast.settings import PRESETS, Settings, preset

OWNERS = {"settings": Settings, **METHODS}
EVERY_FIELD = [(owner, name) for key, owner in OWNERS.items() for name in fields_of(owner)]


@dataclass
class Sample:
    whole: int = setting(1, "a whole number")
    real: float = setting(1.0, "a number")
    flag: bool = setting(False, "yes or no")
    text: str = setting("", "any text")
    choice: Literal["a", "b"] = setting("a", "one of two")
    maybe: float | None = setting(None, "a number or nothing")
    cap: int | None = setting(None, "a whole number or nothing")
    many: tuple[float, ...] = setting((), "numbers")
    hidden: int = 3


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("whole", "12", 12),
        ("whole", "-3", -3),
        ("real", "3e-4", 3e-4),
        ("real", "2", 2.0),
        ("real", "inf", math.inf),
        ("flag", "true", True),
        ("flag", "False", False),
        ("text", "none", "none"),
        ("text", "inf", "inf"),
        ("text", "12", "12"),
        ("choice", "b", "b"),
        ("maybe", "none", None),
        ("maybe", "None", None),
        ("maybe", "0.5", 0.5),
        ("cap", "none", None),
        ("cap", "7", 7),
        ("many", "3e-4,3e-3", (3e-4, 3e-3)),
        ("many", "1", (1.0,)),
    ],
)
def test_parse(name: str, text: str, value: Any) -> None:
    found = parse(Sample, name, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("whole", "1.5", "a whole number"),
        ("whole", "none", "a whole number"),
        ("whole", "inf", "a whole number"),
        ("real", "much", "a number"),
        ("real", "nan", "a number"),
        ("real", "none", "a number"),
        ("real", "", "a number"),
        ("flag", "yes", "true or false"),
        ("flag", "1", "true or false"),
        ("choice", "c", "one of a, b"),
        ("choice", "A", "one of a, b"),
        ("maybe", "nan", "a number or none"),
        ("cap", "x", "a whole number or none"),
        ("many", "1,x", "numbers? separated by commas"),
        ("many", "1,nan", "separated by commas"),
    ],
)
def test_parse_refuses_in_one_line(name: str, text: str, expected: str) -> None:
    with pytest.raises(HoldfastError, match=f"{name}={text}.*{expected}") as error:
        parse(Sample, name, text)
    assert "\n" not in str(error.value)


def samples(hint: Any) -> list[Any]:
    """Return a strategy for the values of a field of this type."""
    options = get_args(hint)
    if get_origin(hint) is Literal:
        return list(options)
    if get_origin(hint) is tuple:
        return [(0.25,), (3e-5, 0.1, 7.0), (1.0, -1.0)]
    if type(None) in options:
        return [None, *(value for option in options if option is not type(None) for value in samples(option))]
    numbers = [0.0, 3e-5, 1.0, 5.0, math.inf]
    return {bool: [True, False], int: [0, 17], float: numbers, str: ["text", "inf", "none"]}[hint]


def outside(bounds: Any, value: Any) -> bool:
    """Return whether a value, or one of several, is outside the bounds of its field."""
    return any(
        (bounds["least"] is not None and number < bounds["least"])
        or (bounds["above"] is not None and number <= bounds["above"])
        or (bounds["most"] is not None and number > bounds["most"])
        or (bounds["below"] is not None and number >= bounds["below"])
        for number in (value if isinstance(value, tuple) else () if value is None else (value,))
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: METHODS["mas"](penalty="prox", lam=1e6), "penalty='prox': expected one of"),
        (lambda: METHODS["mas"](lam="1"), "lam='1': expected a number of at least 0"),
        (lambda: METHODS["mas"]().set(lam=-1), "lam=-1: expected a number of at least 0"),
        (lambda: METHODS["mas"]().set(lamda=1.0), r"unknown setting 'lamda' \(did you mean 'lam'\?\)"),
        (lambda: METHODS["la"](down=5), "down=5: expected a number or none of at least 0, of at most 1"),
        (lambda: Settings(engine="linaer"), "engine='linaer': expected one of bisect, linear"),
        (lambda: Settings(epochs=True), "epochs=True: expected a whole number of at least 1"),
        (
            lambda: Settings(rates=(1e-3, -1.0)),
            "rates=.*: expected numbers separated by commas of at least 0",
        ),
        (lambda: Settings(rates=()), "rates=.*: expected numbers"),
    ],
)
def test_python_is_told_what_the_command_line_is(make: Any, expected: str) -> None:
    with pytest.raises(HoldfastError, match=expected):
        make()


def test_a_value_that_is_refused_is_not_set() -> None:
    method = METHODS["la"](lam=2.0)
    with pytest.raises(HoldfastError):
        method.set(lam=3.0, strategy="none")
    assert method.lam == 2.0


@pytest.mark.parametrize(("owner", "name"), EVERY_FIELD)
def test_every_field_goes_through_json_and_through_text(owner: type, name: str) -> None:
    default = fields_of(owner)[name].default
    assert default is not dataclasses.MISSING
    assert fields_of(owner)[name].metadata["help"]
    for value in [default, *samples(get_type_hints(owner)[name])]:
        text = json.dumps({name: to_json(value)}, allow_nan=False)
        back = from_json(owner, json.loads(text))
        assert back == {name: value}
        assert type(back[name]) is type(value)
        typed = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        if outside(fields_of(owner)[name].metadata, value):
            with pytest.raises(HoldfastError, match=f"--set {name}=.*: expected "):
                parse(owner, name, typed)
            with pytest.raises(HoldfastError, match=f"{name}=.*: expected "):
                owner(**{name: value})
        else:
            assert parse(owner, name, typed) == value
            assert getattr(owner(**{name: value}), name) == value


def test_the_fields_of_the_run_and_of_every_method_are_disjoint() -> None:
    # `--set name=value` must be unambiguous
    for method in METHODS.values():
        assert not fields_of(Settings).keys() & fields_of(method).keys()


def test_fields_of_are_those_with_help_that_a_user_may_set() -> None:
    assert "hidden" not in fields_of(Sample)
    assert list(fields_of(Sample))[:2] == ["whole", "real"]
    for method in METHODS.values():
        assert not method.state.keys() & fields_of(method).keys()


def test_to_json_reaches_into_lists_and_mappings() -> None:
    value = {"lam": math.inf, "rates": (1.0, math.inf), "deep": [{"x": (math.inf,)}], "none": None}
    assert to_json(value) == {"lam": "inf", "rates": [1.0, "inf"], "deep": [{"x": ["inf"]}], "none": None}
    assert value["rates"] == (1.0, math.inf)


def test_presets() -> None:
    assert preset("full") == Settings()
    small = preset("small")
    assert (small.train_per_class, small.valid_per_class, small.epochs, small.patience) == (40, 20, 10, 3)
    assert (small.rates, small.lam_decay, small.lam_steps, small.lam_trials) == ((3e-4, 3e-3), 0.1, 7, 5)
    assert small.loosening == "short"
    with pytest.raises(HoldfastError, match=r"'tiny'.*full, small, quick"):
        preset("tiny")
    assert list(PRESETS) == ["full", "small", "quick"]


def test_the_recipe_is_the_papers() -> None:
    full = Settings()
    assert (full.batch_size, full.epochs, full.patience, full.min_delta) == (32, 50, 5, 0.002)
    assert full.rates == (3e-5, 3e-4, 3e-3, 3e-2)
    assert (full.engine, full.lam_decay, full.lam_steps, full.lam_trials) == ("bisect", 0.9, 175, None)


def test_unknown_names_the_one_that_was_meant_and_all_of_them() -> None:
    known = ["lam", "rates", "epochs"]
    expected = "unknown setting 'Epoch' (did you mean 'epochs'?); known: lam, rates, epochs"
    assert unknown("Epoch", known, "setting") == expected
    assert "did you mean" not in unknown("zzz", known, "setting")

"""Declarations of every method: its fields, strengths and facts."""

from __future__ import annotations

import dataclasses
import inspect
import json

import pytest

from holdfast.fields import parse
from holdfast.methods import METHODS

every_method = pytest.mark.parametrize("name", METHODS)


@every_method
def test_a_field_is_that_of_the_nearest_class_that_declares_it(name):
    """A more distant base class may declare it too; in plain dataclasses that one would win."""
    method = METHODS[name]
    for field in method.hyper_parameters().values():
        owner = next(one for one in method.__mro__ if field.name in inspect.get_annotations(one))
        own = owner.__dataclass_fields__[field.name]
        assert (field.default, field.metadata) == (own.default, own.metadata), (field.name, owner)


@every_method
def test_strengths_name_hyper_parameters(name):
    method = METHODS[name]
    assert set(method.strengths) <= set(method.hyper_parameters())
    assert method.reduces_to_seq is True or isinstance(method.reduces_to_seq, str)


@every_method
def test_hyper_parameters_have_default_help_and_json(name):
    method = METHODS[name]()
    fields = METHODS[name].hyper_parameters()
    assert "lr" in fields
    for key, field in fields.items():
        assert field.default is not dataclasses.MISSING, key
        assert len(field.metadata["help"]) > 5, key
    values = {key: getattr(method, key) for key in fields}
    text = json.dumps(method.hparams(), allow_nan=False)
    other = METHODS[name](lr=123.0)
    other.set(**json.loads(text))
    assert {key: getattr(other, key) for key in fields} == values
    for key, value in values.items():
        typed = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, tuple):
            typed = ",".join(map(str, value))
        assert parse(METHODS[name], key, typed) == value, key


@every_method
def test_a_method_says_what_it_is(name):
    facts = METHODS[name].facts()
    assert set(facts) == {"Equation", "Paper", "Cost", "Two tasks", "Extras", "Keeps"}
    assert all(facts.values())
    assert "Paper:" in (METHODS[name].__doc__ or "") or name.startswith("ancl"), (
        "the docstring must be its own"
    )

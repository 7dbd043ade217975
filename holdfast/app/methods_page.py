"""The page docs/methods.md, generated from the method classes."""

from __future__ import annotations

import inspect

from holdfast.fields import fields_of
from holdfast.methods import METHODS
from holdfast.methods.base import FACT, Method
from holdfast.settings import PRESETS, Settings, preset

HEAD = """# The methods

Written by `holdfast methods --markdown` from the classes in `holdfast/methods/`; a test keeps this page up to
date.

z are the logits, θ the trainable weights and θ_{k-1} those after the previous task; b is the number of
batches of a task, and E the number of epochs until early stopping. In `slda`, `rda`, `klda`, `ranpac` and
the methods that build on `slda`, z is a sentence vector of width d, and Z is the matrix of these vectors.
"Keeps" lists what is stored after a task besides the weights; it may grow with the number of labels, but,
except for `mtl`, not with the number of tasks.
"""

COSTS = """## Passes over the data

For two tasks of b1 and b2 batches, counting only the chosen training runs, without search or validation. A
pass is a forward pass through a batch, with or without a backward pass. The column "two tasks" is the
formula of the paper's table "Computation cost", or its analogue for methods that are not in the paper.
`tests/methods/test_cost.py` checks both cost columns against real runs; a record has its counts in
`passes.chosen`.

| method | two tasks | beyond the paper |
|---|---|---|
"""


SETTINGS = """## Fields of every run

`--set` accepts these besides the hyper-parameters of a method. `learn` accepts those about training; it uses
the preset `small` without its limits on the amount of data.

| field | full | small | quick | description |
|---|---|---|---|---|
"""


def methods_page() -> str:
    """Return the whole page."""
    costs = {name: method.facts() for name, method in METHODS.items()}
    rows = [f"| `{name}` | {cost['Two tasks']} | {cost['Extras']} |" for name, cost in costs.items()]
    entries = "\n".join(_entry(name, method) for name, method in METHODS.items())
    return f"{HEAD}\n{entries}\n{COSTS}" + "\n".join(rows) + f"\n\n{SETTINGS}{_settings()}\n"


def _settings() -> str:
    """Return the table rows of the fields that belong to no method, with their values in each preset."""
    known = {name: preset(name) for name in PRESETS}
    return "\n".join(
        f"| `{field.name}` | "
        + " | ".join(_default(getattr(one, field.name)) for one in known.values())
        + f" | {field.metadata['help']} |"
        for field in fields_of(Settings).values()
    )


def _entry(name: str, method: type[Method]) -> str:
    told = method.facts()
    what = FACT.sub("", inspect.cleandoc(method.__doc__ or "")).strip()
    lines = [f"## {name}", "", what, "", f"    {told['Equation']}", ""]
    facts = {
        "Paper": told["Paper"],
        "Cost of a later task": told["Cost"],
        "Keeps": told["Keeps"],
        **{f"Limitation ({scenario})": words for scenario, words in method.cannot.items()},
    }
    if method.reduces_to_seq is not True:
        facts["Not equal to `seq` when switched off"] = str(method.reduces_to_seq)
    lines += [f"- {title}: {text}" for title, text in facts.items()]
    lines += ["", "| hyper-parameter | default | description |", "|---|---|---|"]
    for field in method.hyper_parameters().values():
        lines.append(f"| `{field.name}` | {_default(field.default)} | {field.metadata['help']} |")
    return "\n".join(lines) + "\n"


def _default(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

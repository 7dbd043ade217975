"""GSM8K and MBPP: reading their files, building prompts and extracting answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast.data.readers import jsonl_rows
from holdfast.errors import HoldfastError
from holdfast.lm.text import Pair

AbilityPart = Literal["train", "valid", "test", "shots"]
GSM8K = "github.com/openai/grade-school-math (grade_school_math/data)"
MBPP = "github.com/google-research/google-research (mbpp)"

# ---- GSM8K: grade-school word problems (Cobbe et al. 2021) ------------------------------------------------

HELD_OUT = 400  # GSM8K has no validation split: the last training problems are used instead
NUMBER = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
STRICT = re.compile(r"#### (-?[0-9.,]+)")


def gsm8k(folder: Path, part: AbilityPart) -> list[Pair]:
    """Return one part of GSM8K; the prompts are `Question: ...` and `Answer:` on two lines."""
    path = _there(folder / "gsm8k" / ("test.jsonl" if part == "test" else "train.jsonl"), GSM8K)
    rows = [_text_fields(place, row, "question", "answer") for place, row in jsonl_rows(path)]
    pairs = [Pair(f"Question: {question}\nAnswer:", f" {answer}") for question, answer in rows]
    parts = {"train": pairs[:-HELD_OUT], "valid": pairs[-HELD_OUT:], "shots": pairs[:32]}
    return parts.get(part, pairs)


def final_number(text: str, *, strict: bool = False) -> str | None:
    """Return the last number of an answer, or with `strict` the first after `####`; None if it has none."""
    found = STRICT.findall(text)[:1] if strict else NUMBER.findall(text)[-1:]
    return plain_number(found[0]) if found else None


def plain_number(text: str) -> str:
    """Remove commas, dollar signs and a final full stop."""
    return re.sub(r"[,$]", "", text).removesuffix(".")


# ---- MBPP: short Python functions (Austin et al. 2021) ----------------------------------------------------


@dataclass(frozen=True)
class Program:
    """An MBPP task: its text, solution, test assertions and set-up code."""

    text: str
    code: str
    tests: tuple[str, ...]
    setup: str = ""

    @property
    def prompt(self) -> str:
        """The prompt of the MBPP paper."""
        tests = "\n".join(self.tests)
        return (
            f"You are an expert Python programmer, and here is your task: {self.text} "
            f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
        )


RANGES: dict[AbilityPart, tuple[int, int]] = {
    "shots": (1, 10),
    "test": (11, 510),
    "valid": (511, 600),
    "train": (601, 974),
}


def programs(folder: Path, part: AbilityPart) -> list[Program]:
    """Return the MBPP tasks of one part."""
    path, (first, last) = _there(folder / "mbpp" / "mbpp.jsonl", MBPP), RANGES[part]
    found = []
    for place, row in jsonl_rows(path):
        if "task_id" not in row or "test_list" not in row:
            raise HoldfastError(f"{place}: no task_id or test_list; is this MBPP?")
        if first <= int(row["task_id"]) <= last:
            text, code = _text_fields(place, row, "text", "code")
            setup = row.get("test_setup_code", "")
            found.append(Program(text, _unix(code), tuple(row["test_list"]), setup))
    return found


def mbpp(folder: Path, part: AbilityPart) -> list[Pair]:
    """Return the tasks and solutions of one part of MBPP; the prompts omit the tests."""
    return [Pair(f"{one.text}\n", one.code) for one in programs(folder, part)]


def code_of(said: str) -> str:
    """Extract the program from an answer: from inside a leading code fence, otherwise before any fence."""
    before, fence, after = said.partition("```")
    if not fence or before.strip():
        return before
    language, _, rest = after.partition("\n")
    return (rest if language.strip().isalnum() or not language.strip() else after).partition("```")[0]


def _there(path: Path, source: str) -> Path:
    if not path.is_file():
        raise HoldfastError(f"{path} does not exist; download it from {source}, or set --data-dir")
    return path


def _unix(code: str) -> str:
    return code.replace("\r\n", "\n").strip("\n")


def _text_fields(place: str, row: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    for name in names:
        if not isinstance(row.get(name), str):
            raise HoldfastError(f"{place}: the field {name!r} is missing or not text")
    return tuple(row[name] for name in names)

"""Two abilities that need no download: code from Python's standard library and generated word problems."""

from __future__ import annotations

import ast
import random
import sysconfig
import textwrap
from functools import cache
from pathlib import Path

from holdfast.lm.tasks import AbilityPart
from holdfast.lm.text import Pair

MODULES = (
    *("abc", "argparse", "bisect", "calendar", "cmd", "code", "codecs", "collections/__init__", "colorsys"),
    *("configparser", "contextlib", "copy", "csv", "dataclasses", "datetime", "difflib", "enum", "filecmp"),
    *("fileinput", "fnmatch", "fractions", "functools", "getopt", "glob", "gzip", "heapq", "hmac", "inspect"),
    *("ipaddress", "keyword", "linecache", "locale", "mimetypes", "numbers", "operator", "pathlib", "pprint"),
    *(
        "queue",
        "random",
        "reprlib",
        "sched",
        "secrets",
        "shlex",
        "shutil",
        "statistics",
        "string",
        "tempfile",
    ),
    *("textwrap", "threading", "timeit", "tokenize", "traceback", "types", "typing", "urllib/parse", "uuid"),
    *("weakref", "zipfile", "zipfile/__init__", "json/decoder", "json/encoder", "email/utils", "html/parser"),
)
SHARES = {"train": (0, 6), "valid": (6, 8), "test": (8, 10), "shots": (0, 6)}  # tenths of the items


@cache
def functions() -> tuple[Pair, ...]:
    """Return short documented functions of the standard library; prompts are signatures and docstrings."""
    place = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for name in MODULES:
        path = place / f"{name}.py"
        if not path.exists():  # the set of modules depends on the Python version
            continue
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node) or len(node.body) < 2:
                continue
            whole = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])).split("\n")
            documented = (node.body[0].end_lineno or 0) - node.lineno + 1
            head, body = "\n".join(whole[:documented]), "\n".join(whole[documented:])
            if 40 < len(body) < 600 and len(head) < 500:
                found.append(Pair(f"{head}\n", body.strip("\n")))
    random.Random(0).shuffle(found)
    return tuple(found)


PEOPLE = ("Ada", "Ben", "Chen", "Dana", "Eli", "Fatima", "Goran", "Hana", "Ivo", "Juno")
THINGS = ("apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "tickets")
PLACES = ("at the market", "from a friend", "on a walk", "at school", "in the garden")


@cache
def problems(count: int = 2000) -> tuple[Pair, ...]:
    """Generate arithmetic word problems; answers show the working and end in `#### number`."""
    rng = random.Random(1)
    return tuple(_problem(rng) for _ in range(count))


def _problem(rng: random.Random) -> Pair:
    who, other = rng.sample(PEOPLE, 2)
    thing, place = rng.choice(THINGS), rng.choice(PLACES)
    a, b, c = rng.randint(3, 60), rng.randint(2, 40), rng.randint(2, 9)
    kind = rng.randrange(4)
    if kind == 0:
        total = (a + b) * c
        text = (
            f"{who} has {a} {thing} and finds {b} more {place}. "
            f"{other} has {c} times as many as {who} then. How many {thing} does {other} have?"
        )
        work = (
            f"{who} has {a}+{b} = {a + b} {thing}.\n{other} has {a + b}*{c} = {total} {thing}.\n#### {total}"
        )
    elif kind == 1:
        each = a * c
        text = (
            f"A box holds {a} {thing}. "
            f"{who} buys {c} boxes {place} and gives {b} {thing} to {other}. How many {thing} are left?"
        )
        work = f"{c} boxes hold {c}*{a} = {each} {thing}.\n{each}-{b} = {each - b} are left.\n#### {each - b}"
    elif kind == 2:
        total = a * c
        text = (
            f"{who} wants to share {total} {thing} equally among {c} friends. "
            f"{other} adds {b} {thing} to each share. How many {thing} does each friend get?"
        )
        work = (
            f"Each share is {total}/{c} = {a} {thing}.\nWith {b} more it is {a}+{b} = {a + b}.\n#### {a + b}"
        )
    else:
        total = a + b + 2 * b
        text = (
            f"{who} collects {a} {thing} on Monday, {b} on Tuesday and twice as many as then on Wednesday. "
            f"How many {thing} is that?"
        )
        work = (
            f"On Wednesday it is 2*{b} = {2 * b} {thing}.\nTogether {a}+{b}+{2 * b} = {total}.\n#### {total}"
        )
    return Pair(f"Question: {text}\nAnswer:", f" {work}")


def part_of(items: tuple[Pair, ...], part: AbilityPart) -> list[Pair]:
    """Return the items of one part of a fixed 60/20/20 split; `shots` is the training part."""
    first, last = SHARES[part]
    return list(items[len(items) * first // 10 : len(items) * last // 10])

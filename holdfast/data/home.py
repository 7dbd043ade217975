"""The streams `home` and `home-domains`, spoken from Home Assistant's own sentence templates.

The templates come from the package `home-assistant-intents`; each is said aloud by a seeded random walk over
the expression hassil parses it into. Train, validation and test never share a template, so that a test
phrasing was never seen in training.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Literal

from hassil.expression import (
    Alternative,
    Expression,
    ListReference,
    Permutation,
    RuleReference,
    Sentence,
    Sequence,
    TextChunk,
)
from hassil.intents import IntentData, Intents, RangeSlotList, SlotList, TextSlotList
from home_assistant_intents import get_intents

from holdfast.data.home_words import NAMES, WORDS
from holdfast.data.tasks import Scenario, Split, Stream, Task
from holdfast.errors import HoldfastError

Part = Literal["train", "valid", "test"]

SIZES: dict[Part, int] = {"train": 60, "valid": 20, "test": 30}
"""How many sentences a label is given in each part, where its templates have that many to say."""

DOMAINS = ("light", "fan", "cover")
REQUESTS = {"turn on": "HassTurnOn", "turn off": "HassTurnOff", "ask state": "HassGetState"}

_TASKS, _INTENTS_PER_TASK = 4, 5
_TRIES = 60  # drawings after which a template is held to have said all it can

# The grammar is made to hear, not to speak: "switch off every my lights" and "ground floor floor" pass.
_ARTICLE = "(?:the|my|our)"
_LAMP = "(?:lights?|lamps?|lighting)"
_BARE = "any|some|all|every|each|on|off|open|opening|closed|closing|shut|shutting|locked|unlocked"
_SLIPS = (
    re.compile(rf"\b({_ARTICLE})(?: {_ARTICLE})+\b"),
    re.compile(rf"\b(every|single) {_ARTICLE}\b"),
    re.compile(rf"\b{_ARTICLE} ({_BARE})\b"),
    re.compile(rf"\b({_LAMP})(?: {_LAMP})+\b"),
    re.compile(r"\b(\w+)(?: \1)+\b"),
    re.compile(r" ([%°])"),
)


@dataclass(frozen=True)
class Template:
    """One sentence template, the rules and lists it refers to, and the domains its `{name}` may come from."""

    text: str
    expression: Expression
    rules: Mapping[str, Sentence]
    lists: Mapping[str, SlotList]
    domains: tuple[str, ...]

    def say(self, rng: random.Random) -> str:
        """One sentence of the template, in lower case with single spaces and without the grammar's slips."""
        text = " ".join(self._walk(self.expression, rng).lower().split())
        for slip in _SLIPS:
            text = slip.sub(r"\1", text)
        return text

    def is_wide(self, rng: random.Random) -> bool:
        """Whether the template can fill a whole test part alone."""
        return len({self.say(rng) for _ in range(2 * SIZES["test"])}) >= SIZES["test"]

    def _walk(self, node: Expression, rng: random.Random) -> str:
        match node:
            case TextChunk():
                return node.text
            case Alternative():  # an optional is an alternative with an empty branch
                return self._walk(rng.choice(node.items), rng)
            case Permutation():
                return "".join(self._walk(item, rng) for item in rng.sample(node.items, len(node.items)))
            case Sequence():
                return "".join(self._walk(item, rng) for item in node.items)
            case RuleReference() if node.rule_name in self.rules:
                return self._walk(self.rules[node.rule_name].expression, rng)
            case ListReference():
                return self._fill(node.list_name, rng)
        raise HoldfastError(f"home-assistant-intents: cannot expand {node} in the template {self.text!r}")

    def _fill(self, slot: str, rng: random.Random) -> str:
        match self.lists.get(slot):
            case RangeSlotList() as numbers:
                return str(rng.randrange(numbers.start, numbers.stop + 1, numbers.step))
            case TextSlotList() as texts:
                return self._walk(rng.choice(texts.values).text_in, rng)
        if words := self._names() if slot == "name" else WORDS.get(slot):
            return rng.choice(words)
        raise HoldfastError(
            f"home-assistant-intents: home_words.py has no words for {{{slot}}} in the template {self.text!r}"
        )

    def _names(self) -> tuple[str, ...]:
        return tuple(name for domain in self.domains for name in NAMES.get(domain, ()))


Phrasings = dict[Part, list[Template]]
Syllabus = dict[str, dict[str, Phrasings]]
"""For each task and each of its labels, the templates of each part."""


@cache
def home(seed: int = 0) -> Stream:
    """Four tasks of five intents, class-incremental: the 20 intents of Home Assistant with most templates.

    They are dealt like cards, most templates first: so the tasks are equally rich, and most intents that are
    easily confused (turn on and turn off, the timers, the volumes) come in different tasks, which is what a
    class-incremental learner has to survive.
    """
    return _stream("home", "class-incremental", home_syllabus(seed), seed)


@cache
def home_domains(seed: int = 0) -> Stream:
    """Turn on, turn off or ask for the state, domain-incremental: of lights, then fans, then covers.

    Only templates made for one domain are used, so no task trains on the test phrasings of another. For a
    cover, to turn on is to open and to turn off is to close, as in Home Assistant.
    """
    return _stream("home-domains", "domain-incremental", domains_syllabus(seed), seed)


def home_syllabus(seed: int) -> Syllabus:
    """The templates behind `home(seed)`."""
    spoken = {intent: _templates(intent) for intent in _package().intents}
    ranked = sorted(spoken, key=lambda intent: (-len(spoken[intent]), intent))[: _TASKS * _INTENTS_PER_TASK]
    return {
        f"home-{i + 1}": {intent: _split(intent, spoken[intent], seed) for intent in ranked[i::_TASKS]}
        for i in range(_TASKS)
    }


def domains_syllabus(seed: int) -> Syllabus:
    """The templates behind `home_domains(seed)`."""
    return {
        domain: {
            label: _split(f"{label}, {domain}", _templates(intent, domain), seed)
            for label, intent in REQUESTS.items()
        }
        for domain in DOMAINS
    }


@cache
def _package() -> Intents:
    english = get_intents("en")
    if english is None:
        raise HoldfastError("home-assistant-intents has no English sentences; reinstall the package")
    return Intents.from_dict(english)


def _templates(intent: str, domain: str | None = None) -> list[Template]:
    """The intent's templates, or those made for this domain alone, each text once."""
    package = _package()
    if intent not in package.intents:
        raise HoldfastError(f"home-assistant-intents has no intent {intent}; install another version of it")
    found: dict[str, Template] = {}
    for block in package.intents[intent].data:
        domains = _domains(block)
        if domain is not None and domains != (domain,):
            continue
        rules = {**package.expansion_rules, **block.expansion_rules}
        lists = {**package.slot_lists, **block.slot_lists}
        for sentence in block.sentences:
            text = str(sentence.text)
            known = found[text].domains if text in found else ()
            found[text] = Template(text, sentence.expression, rules, lists, known + domains)
    return list(found.values())


def _domains(block: IntentData) -> tuple[str, ...]:
    domain = block.slots.get("domain") or block.requires_context.get("domain") or ()
    return (domain,) if isinstance(domain, str) else tuple(domain)


def _split(what: str, templates: list[Template], seed: int) -> Phrasings:
    """Deal the templates: 20% to test, 10% to validation, the rest to training, at least one to each."""
    rng = random.Random(f"{seed}: split {what}")
    order = rng.sample(templates, len(templates))
    test, valid = (max(1, round(share * len(order))) for share in (0.2, 0.1))
    # Narrow ones only train: "pause [the|my] timer" alone would make a test part of three sentences.
    held = list(islice((template for template in order if template.is_wide(rng)), test + valid))
    train = [template for template in order if template not in held]
    if len(held) < test + valid or not train:
        raise HoldfastError(
            f"home-assistant-intents has too few templates for {what}; install another version of it"
        )
    return {"train": train, "valid": held[test:], "test": held[:test]}


def _stream(name: str, scenario: Scenario, syllabus: Syllabus, seed: int) -> Stream:
    said = {
        (task, label): _say(phrasings, random.Random(f"{seed}: say {task} {label}"))
        for task, labels in syllabus.items()
        for label, phrasings in labels.items()
    }
    times = Counter(text for parts in said.values() for texts in parts.values() for text in texts)

    def split(task: str, part: Part) -> Split:
        # A sentence said for two labels has no right answer: neither keeps it.
        return Split.of(
            [
                (text, label)
                for label in syllabus[task]
                for text in said[task, label][part]
                if times[text] == 1
            ]
        )

    tasks = (Task(task, split(task, "train"), split(task, "valid"), split(task, "test")) for task in syllabus)
    return Stream(name, tuple(tasks), scenario)


def _say(phrasings: Phrasings, rng: random.Random) -> dict[Part, list[str]]:
    """Distinct sentences for each part, round robin over its templates; no part repeats another's."""
    said: dict[str, Part] = {}
    for part, templates in phrasings.items():
        wanted = len(said) + SIZES[part]
        for template in templates * _TRIES:
            if len(said) == wanted:
                break
            said.setdefault(template.say(rng), part)
    return {part: [text for text, owner in said.items() if owner == part] for part in SIZES}

"""The report of the language model study: tables and figures from its records.

The plan is followed as far as the records go. It determines which table a trial belongs to and which
records are missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from holdfast.bench.records import Record
from holdfast.report.figures import PALETTE
from holdfast.report.page import write_simple_page
from holdfast.report.plots import Axis, Dash, Figure, Plot, Series
from holdfast.report.tables import Cell, Table, markdown
from holdfast.report.write import write_tables
from holdfast.storage.files import write_text
from holdfast.studies.lm_plan import HARM, LMSpec, Stage, StudyPlan, follow, loss, study
from holdfast.studies.lm_study import COLLAPSED, records_of

TITLES: dict[Stage, str] = {
    "rates": "plain fine-tuning at each rate",
    "harsh": "MAS and LA at the harsh rate",
    "frontier": "other methods and strengths at the harsh rate",
    "sweep": "strength of the penalty, as a proximal step and in the loss",
    "elimination": "the loss form at strength 1, with one change at a time",
}
KINDS = ("naive", "l2", "flow", "wise", "mas", "la", "la-merge")
USUAL = LMSpec("mas")


class StudyRecords:
    """The trials of a plan, their records and the choices made from them."""

    def __init__(self, records: Sequence[Record], plan: StudyPlan) -> None:
        self.trials: list[LMSpec] = []
        self._records = {_key(record["spec"]): record for record in records}
        self.choices = follow(plan, self._answer) or {}

    def _answer(self, trials: list[LMSpec]) -> list[Record] | None:
        """Return the records of all these trials, or None if one is missing."""
        self.trials += trials
        made = self.some(trials)
        return made if len(made) == len(trials) else None

    def record(self, trial: LMSpec) -> Record | None:
        """Return the record of a trial, or None."""
        return self._records.get(_key(trial.spec()))

    def some(self, trials: Sequence[LMSpec]) -> list[Record]:
        """Return the records that exist for these trials."""
        return [record for trial in trials if (record := self.record(trial)) is not None]

    def of(self, stage: Stage) -> list[list[LMSpec]]:
        """Return the trials of a stage, in groups that differ only in the seed."""
        rows: dict[LMSpec, list[LMSpec]] = {}
        for trial in dict.fromkeys(self.trials):
            if trial.stage == stage:
                rows.setdefault(replace(trial, seed=0), []).append(trial)
        return list(rows.values())

    def yardsticks(self, trial: LMSpec) -> tuple[LMSpec, LMSpec]:
        """Return the untouched model, and plain fine-tuning with the rate and seed of a trial."""
        return LMSpec("untouched"), LMSpec("naive", trial.lr, seed=trial.seed)

    def plain(self, trial: LMSpec, ability: str) -> tuple[float, float] | None:
        """Return the test losses of a trial's yardsticks, or None if one is missing."""
        start, naive = map(self.record, self.yardsticks(trial))
        return (loss(start, ability, "test"), loss(naive, ability, "test")) if start and naive else None


def write_study(
    directory: Path, plan: StudyPlan | None = None, about: Mapping[str, Any] | None = None
) -> Path:
    """Write the report of the records whose specs contain `about` into their folder; return its page."""
    found = StudyRecords(records_of(directory, about or {}), plan or study())
    tables = [table for stage in TITLES if (table := losses(found, stage)).rows]
    more = (compared(found), correlations(found), made_of(found))
    tables += [table for table in more if table.rows]
    figures = [figure for figure in (frontier(found), strengths(found)) if figure is not None]
    choices = [f"{name}: {value:g}" for name, value in found.choices.items()]
    asked = {_key(trial.spec()): found.record(trial) for trial in found.trials}
    left = sum(record is None for record in asked.values())
    missing = f"missing: {left} of the {len(asked)} records planned so far" if left else ""
    write_tables(directory, "lm-", tables)
    notes = [*choices, missing] if missing else choices
    write_text(directory / "report.md", "\n".join([*notes, "", *map(markdown, tables)]))
    return write_simple_page(
        directory / "report.html",
        about="Test loss per output token in nats: lower is better. Choices use validation losses only.",
        note=", ".join(choices),
        missing=missing,
        figures=figures,
        tables=tables,
    )


def losses(found: StudyRecords, stage: Stage) -> Table:
    """Return the losses of a stage's trials; some stages also compare them with plain fine-tuning."""
    shared, bounded = stage in ("harsh", "frontier"), stage == "sweep"
    untouched = next((trial for trial in found.trials if trial.kind == "untouched"), None)
    rows = found.of(stage)
    rows = rows if untouched is None or stage == "rates" or not rows else [[untouched], *rows]
    cells = []
    for trials in rows:
        made = found.some(trials)
        digests = _digests(made)
        row = [*_names(trials[0]), f"{len(made)}/{len(trials)}"]
        lost = any(map(collapsed, made))
        numbers = [
            "collapsed" if lost else _range([loss(one, ability, "test") for one in made])
            for ability in ("old", "new")
        ]
        beside = _shares(found, trials) if shared else _excess(found, trials) if bounded else []
        also = digests + _digests(found.some([one for trial in trials for one in found.yardsticks(trial)]))
        own = (Cell(text, records=digests) for text in numbers)
        cells.append([*map(Cell, row), *own, *(Cell(text, records=also) for text in beside)])
    columns = ["method", "form", "change", "rate", "strength", "seeds", "old ability ↓", "new ability ↓"]
    columns += ["gain kept ↑", "damage left ↓"] if shared else []
    columns += ["old, worst ↓", "new, worst ↓"] if bounded else []
    note = "Test loss: mean over seeds (lowest to highest)."
    if shared:
        note += (
            " Gain on the new ability and damage to the old one, as percentages of those of plain "
            "fine-tuning with the same seeds."
        )
    if bounded:
        note += (
            " Worst: the highest value over the seeds of the old ability's loss minus the larger of plain "
            "fine-tuning's and the untouched model's, and of the new ability's loss minus the untouched "
            "model's."
        )
    return Table(f"lm-{stage}", TITLES[stage], columns, cells, naming=5, note=note)


def _names(trial: LMSpec) -> list[str]:
    """Return the texts that name a row."""
    told = [
        f"{name} {getattr(trial, name)}"
        for name in ("clip", "dtype", "squared")
        if getattr(trial, name) != getattr(USUAL, name)
    ]
    if trial.kind == "mas" and trial.normalise != ("none" if trial.mode == "loss" else "global"):
        told.append(f"normalise {trial.normalise}")
    form = trial.mode if trial.kind in ("mas", "la", "l2") else "-"
    strength = "-" if trial.kind in ("untouched", "naive") else f"{trial.strength:g}"
    rate = "-" if trial.kind == "untouched" else f"{trial.lr:g}"
    return [trial.kind, form, ", ".join(told) or "-", rate, strength]


def _shares(found: StudyRecords, trials: Sequence[LMSpec]) -> list[str]:
    """Return the shares of plain fine-tuning's gain and damage with the same seeds.

    "-" if plain fine-tuning has no gain, or damage of at most HARM, if a trial collapsed, or if no seed has
    all records.
    """
    shares = []
    for ability, sign, least in (("new", -1, 0.0), ("old", 1, HARM)):
        own, whole = [], []
        for trial in trials:
            record, plain = found.record(trial), found.plain(trial, ability)
            if record and plain:
                own.append(sign * (loss(record, ability, "test") - plain[0]))
                whole.append(sign * (plain[1] - plain[0]))
        there = bool(whole) and fmean(whole) > least and not any(map(collapsed, found.some(trials)))
        shares.append(f"{100 * fmean(own) / fmean(whole):.0f} %" if there else "-")
    return shares


def _excess(found: StudyRecords, trials: Sequence[LMSpec]) -> list[str]:
    """Return by how much the worst seed exceeds the bound of each ability."""
    worst: dict[str, list[float]] = {"old": [], "new": []}
    if any(map(collapsed, found.some(trials))):
        return ["collapsed"] * len(worst)
    for trial in trials:
        record = found.record(trial)
        for ability, over in worst.items():
            plain = found.plain(trial, ability)
            if record and plain:
                bound = max(plain) if ability == "old" else plain[0]
                over.append(loss(record, ability, "test") - bound)
    return [f"{max(over):+.3f}" if over else "-" for over in worst.values()]


def collapsed(record: Record) -> bool:
    """Return whether a trial collapsed: a NaN or infinite loss is recorded as COLLAPSED."""
    return max(loss(record, ability, "test") for ability in ("old", "new")) >= COLLAPSED


def made_of(found: StudyRecords) -> Table:
    """Return the table of records."""
    rows = []
    for trial in {_key(trial.spec()): trial for trial in found.trials}.values():
        if record := found.record(trial):
            digest = str(record["digest"])
            rows.append([Cell(trial.words), Cell(digest, records=(digest,))])
    return Table("lm-records", "records", ["training run", "record"], rows, words=True)


def compared(found: StudyRecords) -> Table:
    """Compare LA with MAS seed by seed, at the same strength and at the same distance from the start.

    α' and α have different means, so the same λ does not protect equally; equal distances are comparable.
    """
    rows = []
    for trials in found.of("harsh"):
        if trials[0].kind != "la":
            continue
        made = [(trial, la) for trial in trials if (la := found.record(trial)) and not collapsed(la)]
        gaps = [
            [
                loss(la, ability, "test") - mas
                for trial, la in made
                if (mas := plain(found, trial, ability)) is not None
            ]
            for plain in (plain_as_strong, plain_as_far)
            for ability in ("old", "new")
        ]
        pairs = [(la, found.record(replace(trial, kind="mas"))) for trial, la in made]
        records = tuple(str(one["digest"]) for pair in pairs for one in pair if one)
        cells = [Cell(f"{trials[0].strength:g}"), Cell(f"{len(gaps[0])}/{len(trials)}")]
        # "-": MAS has records, but LA's distance lies outside their range.
        texts = [_range(some, sign="+") if some or not gaps[0] else "-" for some in gaps]
        rows.append(cells + [Cell(text, records=records) for text in texts])
    columns = [
        "strength",
        "seeds",
        "old ability ↓",
        "new ability ↓",
        "old, same distance ↓",
        "new, same distance ↓",
    ]
    note = (
        "Test loss of LA minus that of MAS with the same seed: below 0, LA is better. Same distance: the "
        "loss of MAS is interpolated at LA's distance from the start, between MAS at several strengths and "
        "plain fine-tuning (strength 0)."
    )
    return Table(
        "lm-compared",
        "relative importance (LA) compared with plain importance (MAS)",
        columns,
        rows,
        note=note,
    )


def _digests(records: Sequence[Record]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(record["digest"]) for record in records))


def plain_as_strong(found: StudyRecords, trial: LMSpec, ability: str) -> float | None:
    """Return the test loss of MAS at the same strength; None if it is missing or collapsed."""
    record = found.record(replace(trial, kind="mas"))
    return loss(record, ability, "test") if record and not collapsed(record) else None


def plain_as_far(found: StudyRecords, trial: LMSpec, ability: str) -> float | None:
    """Return the test loss of MAS interpolated at a trial's distance from the start; None out of range."""
    held = (other for row in found.of("harsh") for other in row if other.kind == "mas")
    others = [LMSpec("naive", trial.lr, seed=trial.seed), *(t for t in held if t.seed == trial.seed)]
    made = [one for one in found.some(others) if not collapsed(one)]
    points = sorted((float(one["moved"]), loss(one, ability, "test")) for one in made)
    moved = float(found.some([trial])[0]["moved"])
    for (near, low), (far, high) in pairwise(points):
        if near <= moved <= far:
            return low + (high - low) * (moved - near) / ((far - near) or 1.0)
    return None


def _range(values: Sequence[float], sign: str = "") -> str:
    if not values:
        return "missing"
    ends = f" ({min(values):{sign}.3f} to {max(values):{sign}.3f})" if len(values) > 1 else ""
    return f"{fmean(values):{sign}.3f}{ends}"


def correlations(found: StudyRecords) -> Table:
    """Return the correlations between the change of the weights and their importance for the new task."""
    rows = []
    for trial in dict.fromkeys(found.trials):
        record = found.record(trial)
        if trial.kind == "naive" and trial.stage == "rates" and record and record.get("correlation"):
            of, measured = f"{record['spec']['model']}, rate {trial.lr:g}", record["correlation"]
            rows.append(_four(of, "layers", measured, record))
            rows += [_four(of, kind, values, record) for kind, values in measured["kinds"].items()]
    if rows:
        paper = ("Llama-3.2-1B, the paper", "layers", "0.40", "0.63", "0.65", "0.98")
        rows.append([Cell(text) for text in paper])
    title = "correlation between |θ_ft - θ_0| and importance for the new task, by layer and by kind of weight"
    return Table(
        "lm-correlation", title, ["model", "weights", "min", "median", "mean", "max"], rows, naming=2
    )


def _four(of: str, which: str, measured: dict[str, float | None], record: Record) -> list[Cell]:
    values = [measured[name] for name in ("min", "median", "mean", "max")]
    shown = ["-" if value is None else f"{value:.2f}" for value in values]
    return [Cell(of), Cell(which), *(Cell(text, records=(record["digest"],)) for text in shown)]


def frontier(found: StudyRecords) -> Figure | None:
    """Draw the loss of the old ability against that of the new one, with a line over each method's strengths.

    The line of plain fine-tuning runs over its rates; a method is useful only below that line.
    """
    rows = [trials for stage in ("harsh", "frontier") for trials in found.of(stage) if found.some(trials)]
    held = {trials[0].lr for trials in rows}
    rows += [trials for trials in found.of("rates") if trials[0].kind == "naive" and trials[0].lr not in held]
    # Seeds can differ more than methods do, so only seeds that all points share are averaged.
    made_with = [{trial.seed for trial in trials if found.record(trial)} for trials in rows]
    seeds = set.intersection(*made_with) if made_with else set()
    drawn = []
    for number, kind in enumerate(KINDS):
        own = [
            (trials[0], found.some([trial for trial in trials if trial.seed in seeds]))
            for trials in rows
            if trials[0].kind == kind
        ]
        own = [(trial, made) for trial, made in own if made and not any(map(collapsed, made))]
        if own:
            own.sort(key=lambda pair: (pair[0].strength, pair[0].lr))
            drawn.append(_points("naive, by rate" if kind == "naive" else kind, own, PALETTE[number]))
    start = [trial for trial in found.trials if trial.kind == "untouched"]
    if drawn and found.some(start):
        drawn.append(_points("untouched", [(start[0], found.some(start))], "#868f99"))
    content = Plot(drawn, Axis("loss of the new ability"), Axis("loss of the old ability"), height=360)
    note = (
        "Lower and further left is better. Each point is one strength at the harsh rate, one rate of plain "
        "fine-tuning, or the untouched model; losses are averaged over the seeds that all trained points "
        f"share ({', '.join(map(str, sorted(seeds)))})."
    )
    return Figure("Old against new ability", content, note) if len(drawn) > 1 else None


def strengths(found: StudyRecords) -> Figure | None:
    """Draw the losses of both abilities against λ, with the penalty as a proximal step and in the loss."""
    rows = [(trials[0], found.some(trials)) for trials in found.of("sweep")]
    rows = [(trial, made) for trial, made in rows if made and not any(map(collapsed, made))]
    held = sorted((pair for pair in rows if pair[0].kind == "mas"), key=lambda pair: pair[0].strength)
    if not held:
        return None
    ends = [("untouched", found.some([LMSpec("untouched")]))]
    ends += [("naive", made) for trial, made in rows if trial.kind == "naive"]
    drawn = []
    dashes: dict[str, Dash] = {"proximal": "solid", "loss": "dash"}
    for ability, colour in zip(("old", "new"), PALETTE, strict=False):
        for mode, dash in dashes.items():
            own = [pair for pair in held if pair[0].mode == mode]
            over = [trial.strength for trial, _ in own]
            drawn.append(_line(f"{ability}, {mode}", over, _means(own, ability), colour, dash))
        across = [held[0][0].strength, held[-1][0].strength]
        for name, made in filter(lambda end: end[1], ends):
            level = _means([(USUAL, made)], ability) * 2
            drawn.append(_line(f"{ability}, {name}", across, level, colour, "dot"))
    content = Plot(drawn, Axis("λ", log=True), Axis("loss"), height=360)
    note = "Dotted: the untouched model and plain fine-tuning. Means over all available seeds."
    return Figure("Strength of the penalty", content, note)


def _line(name: str, x: list[float], y: list[float], colour: str, dash: Dash) -> Series:
    return Series(name, x, y, colour, dash, "" if dash == "dot" else "dot", width=1.2)


def _means(rows: Sequence[tuple[LMSpec, list[Record]]], ability: str) -> list[float]:
    return [round(fmean(loss(one, ability, "test") for one in made), 4) for _, made in rows]


def _points(name: str, rows: Sequence[tuple[LMSpec, list[Record]]], colour: str) -> Series:
    words = [f"{trial.words}, seeds: {len(made)}" for trial, made in rows]
    line: Dash = "solid" if len(rows) > 1 else ""
    x, y = _means(rows, "new"), _means(rows, "old")
    return Series(name, x, y, colour, line, "dot", width=1.2, size=4.5, words=words)


def _key(spec: dict[str, Any]) -> tuple[Any, ...]:
    """Return a key that identifies a trial of a study."""
    return tuple(spec[name] for name in USUAL.spec())

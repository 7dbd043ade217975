"""What each kind of section shows: the tables of the paper, from runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from holdfast.data import STREAMS
from holdfast.display import percent
from holdfast.methods import METHODS
from holdfast.methods.strength import THRESHOLDS
from holdfast.report import published
from holdfast.report.runs import METRICS, Run, Section
from holdfast.report.statistics import compare, estimate, holm
from holdfast.report.tables import Cell, Rank, Table, ranked

UPPER = "mtl"  # a bound, not a competitor: it is never the best


def tables_of(section: Section, name: str) -> list[Table]:
    """The tables of a section; `name` begins the names of their files."""
    views = {"thresholds": thresholds, "tau": tau, "strategies": strategies, "cost": cost}
    first = views[section.view](section, name) if section.view in views else main(section, name)
    rest = [by_order(section, name), compared(section, name)] if section.view == "main" else []
    return [table for table in (first, *rest, chosen(section, name)) if table.rows]


def main(section: Section, name: str) -> Table:
    """The paper's main table: mean (std) over orders and seeds, its own numbers beside ours."""
    labels = section.by_label()
    theirs = published.MAIN.get(str(section.runs[0].spec["stream"]), {})
    values = {
        metric: {label: _known(section, runs, metric) for label, runs in labels.items()} for metric in METRICS
    }
    ranks = {metric: _ranks(found, high=METRICS[metric] == "↑") for metric, found in values.items()}
    several = len({run.where[1] for run in section.made}) > 1
    rows = []
    for label, runs in labels.items():
        made = [run for run in runs if run.record is not None]
        records = tuple(run.digest for run in made)
        row = [Cell(label), Cell(f"{len(made)}/{len(runs)}")]
        for metric in METRICS:
            beside = _beside(section, made) if metric == "FWT" else ()
            row.append(Cell(_mean_std(values[metric][label]), ranks[metric][label], (*records, *beside)))
        if several:
            row.append(Cell(_interval(list(_by_place(section, runs).values())), records=records))
        if theirs:
            row += [Cell(text or "-") for text in theirs.get(runs[0].method, (None,) * 4)]
        rows.append(row)
    columns = ["method", "runs", *(f"{metric} {arrow}" for metric, arrow in METRICS.items())]
    columns += ["Ov, 95 % interval"] * several
    columns += [f"paper {metric}" for metric in METRICS] if theirs else []
    note = "Mean (standard deviation) over orders and seeds. Best bold, second underlined; mtl is not ranked."
    return Table(f"{name}-main", f"{section.title}: main table", columns, rows, note=note)


def by_order(section: Section, name: str) -> Table:
    """Ov (CF) of every run by itself."""
    places = sorted({run.where for run in section.runs})
    rows = []
    for label, runs in section.by_label().items() if len(places) > 1 else ():
        found = {run.where: run for run in runs}
        cells = [_one(section, found.get(place)) for place in places]
        rows.append([Cell(label), *cells])
    columns = ["method", *(f"order {order}, seed {seed}" for order, seed in places)]
    return Table(f"{name}-by-order", f"{section.title}: Ov (CF) run by run", columns, rows)


def compared(section: Section, name: str) -> Table:
    """Every method against the one with the highest mean Ov, over the same orders and seeds."""
    ours = {
        label: _by_place(section, runs)
        for label, runs in section.by_label().items()
        if not label.startswith(UPPER)
    }
    ours = {label: found for label, found in ours.items() if len(found) > 1}
    title = f"{section.title}: is the best one better?"
    columns = ["method", "minus", "pairs", "difference in Ov", "95 % interval", "p (Holm)"]
    note = (
        "Paired t-test over orders (each the mean over its seeds; over seeds if there is one order), Holm's "
        "correction for several comparisons. Pairs are few: a large p says that they cannot tell, not that "
        "the methods are alike."
    )
    if len(ours) < 2:
        return Table(f"{name}-compared", title, columns)
    everywhere = set.intersection(*(set(found) for found in ours.values())) or set()
    whole = {label: [found[at] for at in everywhere] for label, found in ours.items()}
    best = max(ours, key=lambda label: (sum(whole[label]), len(ours[label])))
    pairs = []
    for label, found in ours.items():
        common = sorted(found.keys() & ours[best].keys())
        if label != best and len(common) > 1:
            pairs.append((label, compare([ours[best][at] for at in common], [found[at] for at in common])))
    chances = holm([comparison.p for _, comparison in pairs])
    rows = []
    for (label, comparison), p in zip(pairs, chances, strict=True):
        gap = comparison.difference
        half = gap.half or 0.0
        interval = f"{100 * (gap.mean - half):+.2f} to {100 * (gap.mean + half):+.2f}"
        shown = "-" if math.isnan(p) else f"{p:.3f}"
        rows.append(
            [
                Cell(best),
                Cell(label),
                Cell(str(gap.count)),
                Cell(f"{100 * gap.mean:+.2f}"),
                Cell(interval),
                Cell(shown),
            ]
        )
    return Table(f"{name}-compared", title, columns, rows, naming=2, note=note)


def chosen(section: Section, name: str) -> Table:
    """What the search of each run chose, task by task."""
    runs = [run for runs in section.by_label().values() for run in runs if run.record and not run.joint]
    longest = max((len(run.matrix) for run in runs), default=0)
    rows = []
    for run in runs:
        assert run.record is not None
        own = (run.digest,)
        cells = [Cell(f"{one['task']}: {choice_words(one)}", "", own) for one in run.record["chosen"]]
        trainings = sum(len(lesson["trials"]) for lesson in run.record["trials"])
        where = f"{run.where[0]}, {run.where[1]}"
        rows.append([Cell(run.label), Cell(where), Cell(str(trainings), records=(run.digest,)), *cells])
    columns = ["method", "order, seed", "trainings", *(f"task {k + 1}" for k in range(longest))]
    return Table(f"{name}-chosen", f"{section.title}: what the searches chose", columns, rows, naming=2)


def thresholds(section: Section, name: str) -> Table:
    """The paper's table over thr."""
    own = [run for run in _sorted(section) if run.method != "seq"]
    share = {run.digest: run.own.get("thr", _usual_share(run)) for run in own}
    rows = []
    for thr in sorted(set(share.values()), reverse=True):
        block = [run for run in own if share[run.digest] == thr]
        ranks = {
            metric: ranked([section.metric(run, metric) for run in block], high=arrow == "↑")
            for metric, arrow in METRICS.items()
        }
        for place, run in enumerate(block):
            cells = [_metric(section, run, metric, ranks[metric][place]) for metric in METRICS]
            theirs = published.THRESHOLDS.get((thr, run.method) if _papers(run) else (0, ""), ("-",) * 5)
            rows.append(
                [Cell(f"{100 * thr:g}"), Cell(run.method), Cell(_lams(run)), *cells, *map(Cell, theirs)]
            )
    columns = ["thr", "method", "λ by task", *_heads(METRICS), *(f"paper {what}" for what in ("λ", *METRICS))]
    note = (
        "Best of each threshold bold, second underlined. λ is that of each task from the second on; the "
        "paper's belongs to another scale of importance."
    )
    return Table(f"{name}-thresholds", f"{section.title}: thresholds", columns, rows, naming=3, note=note)


def tau(section: Section, name: str) -> Table:
    """The paper's ablation of the cut-off, after the second, third, ... task."""
    own = sorted((run for run in section.runs if run.method == "la"), key=lambda run: -_fraction(run))
    shown = {"Ov": "↑", "CF": "↓", "FWT": "↑"}
    rows = []
    longest = max((len(run.matrix) for run in own), default=0)
    for tasks in range(2, longest + 1):
        values = {metric: [section.metric(run, metric, tasks) for run in own] for metric in shown}
        ranks = {metric: ranked(values[metric], high=arrow == "↑") for metric, arrow in shown.items()}
        for place, run in enumerate(own):
            one = run.record["chosen"][tasks - 1] if run.record else {}
            found = [Cell(percent(values[m][place]), ranks[m][place], _records(run)) for m in shown]
            theirs = published.TAU.get((tasks, _fraction(run)) if _papers(run) else (0, 0), ("-",) * 5)
            knobs = [Cell(_short(one.get(key))) for key in ("lam", "down", "up")]
            at = f"{_fraction(run):.2f}{_method_at(run).removeprefix('la')}"
            rows.append([Cell(str(tasks)), Cell(at), *knobs, *found, *map(Cell, theirs)])
    columns = ["tasks", "τ / mean ρ", "λ", "λ_down", "m", *_heads(shown)]
    columns += [f"paper {what}" for what in ("λ_down", "λ_up", "Ov", "CF", "FWT")]
    note = "m says where λ_up lies between 1/τ (0) and λ_max/λ (1)."
    return Table(f"{name}-tau", f"{section.title}: cut-off", columns, rows, naming=2, note=note)


def strategies(section: Section, name: str) -> Table:
    """Every point of the figures on weighting strategies."""
    rows = []
    for run in _sorted(section):
        own = run.own
        kind = own.get("strategy", "balance") if run.method == "la" else run.method
        knobs = [Cell(_short(own.get(key))) for key in ("tau", "down", "up")]
        shown = ("Ov", "CF", "FWT")
        rows.append([Cell(kind), *knobs, *(_metric(section, run, metric) for metric in shown)])
    columns = ["strategy", "τ", "λ_down", "m", "Ov ↑", "CF ↓", "FWT ↑"]
    return Table(f"{name}-strategies", f"{section.title}: weighting strategies", columns, rows)


def cost(section: Section, name: str) -> Table:
    """Passes over the data of the chosen trainings, beside the paper's formula; seconds and memory of all."""
    labels = section.by_label()
    base = next((run for run in section.made if run.method == "seq"), None)
    usual = base.record["seconds"] if base and base.record else None
    rows = []
    for label, runs in labels.items():
        run = runs[0]
        if run.record is None:
            rows.append([Cell(label), *[Cell("missing")] * 7])
            continue
        forward, backward = (_total(run.record["passes"]["chosen"], way) for way in ("forward", "backward"))
        trainings = sum(len(lesson["trials"]) for lesson in run.record["trials"])
        seconds = run.record["seconds"]
        ratio = "-" if usual is None else f"{seconds / usual:.1f}"
        numbers = (
            f"{forward}",
            f"{backward}",
            f"{trainings}",
            f"{seconds:.0f}",
            ratio,
            f"{run.record['peak_memory'] / 2**20:.0f}",
        )
        facts = METHODS[run.method].facts()["Two tasks"]
        rows.append([Cell(label), Cell(facts), *(Cell(text, records=(run.digest,)) for text in numbers)])
    columns = [
        "method",
        "passes for two tasks",
        "forward batches",
        "backward batches",
        "trainings",
        "seconds",
        "× seq",
        "peak MB",
    ]
    note = (
        "Batches of the chosen trainings, search left out, as in the paper; trainings, seconds and memory "
        "are of the whole run, search included."
    )
    return Table(f"{name}-cost", f"{section.title}: computation cost", columns, rows, naming=2, note=note)


# ---- cells ----------------------------------------------------------------------------------------------


def choice_words(one: dict[str, Any]) -> str:
    """The hyper-parameters of one task, with what the search had to say about them."""
    signs = {"lr": "lr", "lam": "λ", "lam_a": "λ_a", "down": "λ_down", "up": "m"}
    numbers = [f"{sign} {_short(one[key])}" for key, sign in signs.items() if one.get(key) is not None]
    return ", ".join([*numbers, *one.get("flags", [])])


def _sorted(section: Section) -> list[Run]:
    return [run for runs in section.by_label().values() for run in runs]


def _beside(section: Section, runs: Sequence[Run]) -> tuple[str, ...]:
    """The records that forward transfer is measured against."""
    found = [section.naive(run) for run in runs]
    return tuple(naive.digest for naive in found if naive is not None and naive not in runs)


def _by_place(section: Section, runs: Sequence[Run]) -> dict[str, float]:
    """Ov of each order, or of each seed if there is one order: seeds of an order hang together."""
    found = {run.where: value for run in runs if (value := section.metric(run, "Ov")) is not None}
    orders = {order for order, _ in found}
    if len(orders) < 2:
        return {f"seed {seed}": value for (_, seed), value in found.items()}
    of = {order: [value for (own, _), value in found.items() if own == order] for order in orders}
    return {f"order {order}": sum(values) / len(values) for order, values in of.items()}


def _known(section: Section, runs: Sequence[Run], metric: str) -> list[float]:
    return [value for run in runs if (value := section.metric(run, metric)) is not None]


def _ranks(values: dict[str, list[float]], *, high: bool) -> dict[str, Rank]:
    """Which means are best and second. A bound, and means over fewer runs than others have, are left out."""
    most = max(map(len, values.values()), default=0)
    means = [
        fmean(found) if found and len(found) == most and not label.startswith(UPPER) else None
        for label, found in values.items()
    ]
    return dict(zip(values, ranked(means, high=high), strict=True))


def _mean_std(values: Sequence[float]) -> str:
    if not values:
        return "-"
    found = estimate(values)
    return percent(found.mean) + ("" if found.std is None else f" ({100 * found.std:.1f})")


def _interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "-"
    found = estimate(values)
    half = found.half or 0.0
    return f"{percent(found.mean - half)} to {percent(found.mean + half)}"


def _one(section: Section, run: Run | None) -> Cell:
    if run is None or run.record is None:
        return Cell("-" if run is None else "missing")
    lost = section.metric(run, "CF")
    text = percent(section.metric(run, "Ov")) + ("" if lost is None else f" ({percent(lost)})")
    return Cell(text, records=(run.digest,))


def _metric(section: Section, run: Run, metric: str, rank: Any = "") -> Cell:
    if run.record is None:
        return Cell("missing")
    return Cell(percent(section.metric(run, metric)), rank, (run.digest,))


def _records(run: Run) -> tuple[str, ...]:
    return (run.digest,) if run.record else ()


def _heads(shown: dict[str, str]) -> list[str]:
    return [f"{metric} {arrow}" for metric, arrow in shown.items()]


def _lams(run: Run) -> str:
    found = run.record["chosen"][1:] if run.record else []
    return ", ".join(_short(one.get("lam")) for one in found) or "-"


def _papers(run: Run) -> bool:
    """Whether the paper has numbers for it: its ablations are of the second order of hwu64."""
    return run.spec["stream"] == "hwu64" and run.where[0] == "2"


def _method_at(run: Run) -> str:
    """The method, and where it was run if that is not the paper's place."""
    order, seed = run.where
    return run.method if _papers(run) and seed == 0 else f"{run.method}, order {order}, seed {seed}"


def _usual_share(run: Run) -> float:
    stream = STREAMS.get(str(run.spec["stream"]))
    return THRESHOLDS["class-incremental" if stream is None else stream.scenario]


def _fraction(run: Run) -> float:
    return float(run.own.get("fraction", METHODS["la"].hyper_parameters()["fraction"].default))


def _total(passes: dict[str, dict[str, int]], way: str) -> int:
    return sum(counts[way] for counts in passes.values())


def _short(value: Any) -> str:
    return "-" if value is None else "∞" if value == "inf" else f"{value:.3g}"

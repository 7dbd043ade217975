"""The tables and figures of a report, for each view of a suite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from holdfast.bench.records import Record
from holdfast.maths.metrics import percent
from holdfast.methods import METHODS
from holdfast.report.errors import label_errors
from holdfast.report.figures import curves, trade_off, trial_frontier
from holdfast.report.means import (
    against_best,
    interval,
    is_bound,
    mean_cell,
    ranks,
    values,
)
from holdfast.report.plots import Figure
from holdfast.report.runs import METRICS, Run, Section
from holdfast.report.statistics import within
from holdfast.report.tables import Cell, Table, short
from holdfast.report.write import Written, write
from holdfast.studies import frontier, published, strategies

UNITS = "orders, each averaged over its seeds (over seeds if there is only one order)"


def write_report(directory: Path) -> Written:
    """Write the report of a folder of records to that folder."""
    return write(directory, tables_of, figures_of, frontier.figures)


def figures_of(section: Section) -> list[Figure]:
    """Return the figures of a section."""
    if section.view == "strategies":
        return strategies.figures(section)
    drawings = (curves, trade_off, trial_frontier) if section.view == "main" else ()
    drawn = (draw(section) for draw in drawings)
    return [figure for figure in drawn if figure is not None]


def tables_of(section: Section, name: str) -> list[Table]:
    """Return the non-empty tables of a section; `name` is the prefix of their file names."""
    views = {"thresholds": thresholds, "tau": tau, "strategies": strategies.table, "cost": cost}
    first = views.get(section.view, main_table)(section, name)
    more = (intervals, by_order, paired_tests) if section.view == "main" else ()
    rest = [table(section, name) for table in more]
    last = [label_errors(section, name), chosen(section, name), records(section, name)]
    return [table for table in (first, *rest, *last) if table.rows]


def main_table(section: Section, name: str) -> Table:
    """Return the main table: mean (std) over orders and seeds, with the paper's numbers if it has any."""
    labels = section.by_label()
    known = published.MAIN.get(str(section.runs[0].spec["stream"]), {}) if _whole(section.runs[0]) else {}
    theirs = {
        label: known[runs[0].method]
        for label, runs in labels.items()
        if runs[0].method in known and runs[0].own in published.settings_of(runs[0].method)
    }
    rank = {
        metric: ranks({label: values(section, runs, metric) for label, runs in labels.items()}, high=up)
        for metric, up in _directions(METRICS).items()
    }
    rows = []
    for label, runs in labels.items():
        made = sum(run.record is not None for run in runs)
        row = [Cell(label), Cell(f"{made}/{len(runs)}")]
        row += [mean_cell(section, runs, metric, rank[metric][label]) for metric in METRICS]
        row += [Cell(text or "-") for text in theirs.get(label, (None,) * len(METRICS))] if theirs else []
        rows.append(row)
    columns = ["method", "runs", *_heads(METRICS), *(f"paper {metric}" for metric in METRICS if theirs)]
    note = (
        "Mean (standard deviation) over orders and seeds. Best in bold, second best underlined, by the mean "
        "over the orders and seeds that most methods have; mtl and seq are not ranked. FWT needs the seq run "
        "of the same order and seed"
    )
    some = any(cell.text.endswith("]") for row in rows for cell in row)
    note += "; in brackets, how many runs have one." if some else "."
    wide = len(METRICS) if theirs else 0
    return Table(f"{name}-main", f"{section.title}: main table", columns, rows, note=note, wide=wide)


def intervals(section: Section, name: str) -> Table:
    """Return the confidence intervals of the means; empty unless there are several seeds."""
    several = len({run.where[1] for run in section.made}) > 1
    rows = []
    for label, runs in section.by_label().items() if several else ():
        found = [(values(section, runs, metric), mean_cell(section, runs, metric)) for metric in METRICS]
        cells = [Cell(interval(own), records=cell.records) for own, cell in found]
        rows.append([Cell(label), *cells])
    note = f"By Student's t over {UNITS}."
    title = f"{section.title}: 95 % intervals of the means"
    return Table(f"{name}-intervals", title, ["method", *_heads(METRICS)], rows, note=note)


def by_order(section: Section, name: str) -> Table:
    """Return Ov (CF) of every run; empty if there is only one order and seed."""
    places = sorted({run.where for run in section.runs})
    rows = []
    for label, runs in section.by_label().items() if len(places) > 1 else ():
        found = {run.where: run for run in runs}
        cells = [_one(section, found.get(place)) for place in places]
        rows.append([Cell(label), *cells])
    columns = ["method", *(f"order {order}, seed {seed}" for order, seed in places)]
    return Table(f"{name}-by-order", f"{section.title}: Ov (CF) run by run", columns, rows)


def paired_tests(section: Section, name: str) -> Table:
    """Compare the best ranked method by Ov with every other one except mtl, over common orders and seeds."""
    labels = {label: runs for label, runs in section.by_label().items() if not is_bound(label)}
    found = {label: values(section, runs, "Ov") for label, runs in labels.items()}
    best, others = against_best(found)
    rows = []
    for label, (test, p) in others.items():
        gap = test.difference
        low, high = within(gap, 1.0)
        numbers = (
            str(gap.count),
            f"{100 * gap.mean:+.2f}",
            "-" if math.isnan(p) else f"{100 * low:+.2f} to {100 * high:+.2f}",
            "-" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}",
        )
        common = found[best].keys() & found[label].keys()
        both = tuple(run.digest for one in (best, label) for run in labels[one] if run.where in common)
        rows.append([Cell(best), Cell(label), *(Cell(text, records=both) for text in numbers)])
    columns = ["method", "minus", "pairs", "difference in Ov", "95 % interval of this pair alone", "p (Holm)"]
    note = (
        f"Paired t-test over {UNITS}, on the runs that both methods have; "
        "Holm's correction for the comparisons between all methods except mtl, because the best one is "
        "chosen by the same scores. With few pairs, a large p means that the data cannot decide, not that "
        "the methods are equal."
    )
    title = f"{section.title}: is the best one better?"
    return Table(f"{name}-compared", title, columns, rows, naming=2, note=note)


def chosen(section: Section, name: str) -> Table:
    """Return the hyper-parameters that each run chose, task by task."""
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
    columns = ["method", "order, seed", "training runs", *(f"task {k + 1}" for k in range(longest))]
    title = f"{section.title}: what the searches chose"
    return Table(f"{name}-chosen", title, columns, rows, naming=2, words=True, folded=True)


def records(section: Section, name: str) -> Table:
    """Return the record and the code revision of each finished run."""
    rows = []
    for run in _sorted(section):
        if run.record is not None:
            place, revision = f"{run.where[0]}, {run.where[1]}", str(run.record.get("revision") or "-")
            rows.append([Cell(run.label), Cell(place), Cell(run.digest, "", (run.digest,)), Cell(revision)])
    columns = ["method", "order, seed", "record", "revision of the code"]
    title = f"{section.title}: records"
    return Table(f"{name}-records", title, columns, rows, naming=2, words=True, folded=True)


def thresholds(section: Section, name: str) -> Table:
    """Return the paper's table over the threshold thr."""
    blocks: dict[float, dict[str, list[Run]]] = {}
    for run in _sorted(section):
        if run.method != "seq":
            blocks.setdefault(run.share or 0.0, {}).setdefault(run.label_without("thr"), []).append(run)
    rows = []
    for thr, methods in sorted(blocks.items(), reverse=True):
        rank = {
            metric: ranks(
                {method: values(section, runs, metric) for method, runs in methods.items()}, high=up
            )
            for metric, up in _directions(METRICS).items()
        }
        for method, runs in methods.items():
            cells = [mean_cell(section, runs, metric, rank[metric][method]) for metric in METRICS]
            theirs = published.THRESHOLDS.get(
                (thr, method) if _papers(runs) and all(map(_whole, runs)) else (0, ""), ("-",) * 5
            )
            made = [run for run in runs if run.record]
            lams = Cell("; ".join(map(_lams, made)) or "-", records=tuple(run.digest for run in made))
            rows.append(
                [Cell(f"{100 * thr:g}" if thr else "usual"), Cell(method), lams, *cells, *map(Cell, theirs)]
            )
    columns = ["thr", "method", "λ by task", *_heads(METRICS), *(f"paper {what}" for what in ("λ", *METRICS))]
    note = (
        "Best for each threshold in bold, second best underlined. λ is listed for each run and each task "
        "from the second on; the paper's importance is on a different scale, so its λ is not comparable."
    )
    title = f"{section.title}: thresholds"
    return Table(f"{name}-thresholds", title, columns, rows, naming=3, note=note, wide=5)


def tau(section: Section, name: str) -> Table:
    """Return the paper's ablation of the cut-off τ, after the second and each later task."""
    groups: dict[tuple[float, str], list[Run]] = {}
    for run in sorted((run for run in section.runs if run.method == "la"), key=_fraction, reverse=True):
        groups.setdefault((_fraction(run), run.label_without("fraction")), []).append(run)
    shown = {"Ov": "↑", "CF": "↓", "FWT": "↑"}
    rows = []
    longest = max((len(run.matrix) for runs in groups.values() for run in runs), default=0)
    for tasks in range(2, longest + 1):
        rank = {
            metric: ranks(
                {str(at): values(section, runs, metric, tasks) for at, runs in groups.items()}, high=up
            )
            for metric, up in _directions(shown).items()
        }
        for kind, runs in groups.items():
            at, label = kind
            made = [run for run in runs if run.record]
            found = [mean_cell(section, runs, metric, rank[metric][str(kind)], tasks) for metric in shown]
            theirs = published.TAU.get((tasks, at) if _papers(runs) and label == "la" else (0, 0), ("-",) * 5)
            own = tuple(run.digest for run in made)
            knobs = [
                Cell("; ".join(short(_chosen(run, tasks).get(key)) for run in made) or "-", records=own)
                for key in ("lam", "down", "up")
            ]
            what = f"{at:.2f}{label.removeprefix('la')}"
            rows.append([Cell(str(tasks)), Cell(what), *knobs, *found, *map(Cell, theirs)])
    columns = ["tasks", "τ / mean ρ", "λ", "λ_down", "m", *_heads(shown)]
    columns += [f"paper {what}" for what in ("λ_down", "λ_up", "Ov", "CF", "FWT")]
    note = (
        "m says where λ_up lies between 1/τ (0) and λ_max/λ (1). The paper's λ is 4.5. Best for each "
        "number of tasks in bold, second best underlined."
    )
    return Table(f"{name}-tau", f"{section.title}: cut-off", columns, rows, naming=2, note=note, wide=5)


def cost(section: Section, name: str) -> Table:
    """Return the computation cost of each method."""
    columns = [
        "method",
        "passes for two tasks",
        "beyond the paper",
        "forward batches",
        "backward batches",
        "training runs",
    ]
    columns += ["seconds", "× seq", "peak MB"]
    spent = {label: [run for run in runs if run.record] for label, runs in section.by_label().items()}
    usual = _mean_of(spent.get("seq", []), lambda record: record["seconds"])
    rows = []
    for label, runs in spent.items():
        if not runs:
            rows.append([Cell(label), *[Cell("missing")] * (len(columns) - 1)])
            continue
        seconds = _mean_of(runs, lambda record: record["seconds"])
        numbers = (
            _mean_of(runs, lambda record: _total(record["passes"]["chosen"], "forward")),
            _mean_of(runs, lambda record: _total(record["passes"]["chosen"], "backward")),
            _mean_of(runs, lambda record: sum(len(lesson["trials"]) for lesson in record["trials"])),
            seconds,
        )
        texts = [f"{number:.0f}" for number in numbers]
        texts.append(f"{seconds / usual:.1f}" if usual else "-")
        texts.append(f"{max(run.record['peak_memory'] for run in runs if run.record) / 2**20:.0f}")
        own, facts = tuple(run.digest for run in runs), METHODS[runs[0].method].facts()
        told = [Cell(facts.get(name, "-")) for name in ("Two tasks", "Extras")]
        rows.append([Cell(label), *told, *(Cell(text, records=own) for text in texts)])
    note = (
        "Batches are those of the chosen training runs, without the search, as in the paper; training runs, "
        "seconds and memory include the search. Means over orders and seeds; memory is the maximum."
    )
    return Table(f"{name}-cost", f"{section.title}: computation cost", columns, rows, naming=3, note=note)


# ---- cells ----------------------------------------------------------------------------------------------


def choice_words(one: dict[str, Any]) -> str:
    """Return the chosen hyper-parameters of one task and the flags of the search.

    >>> choice_words({"lr": 0.003, "lam": "inf", "flags": ["saturated"]}), choice_words({"lr": 0.0})
    ('lr 0.003, λ ∞, saturated', '-')
    """
    if one.get("lr") == 0:  # nothing was trained
        return ", ".join(["-", *one.get("flags", [])])
    signs = {"lr": "lr", "lam": "λ", "lam_a": "λ_a", "down": "λ_down", "up": "m"}
    numbers = [f"{sign} {short(one[key])}" for key, sign in signs.items() if one.get(key) is not None]
    return ", ".join([*numbers, *one.get("flags", [])])


def _sorted(section: Section) -> list[Run]:
    return [run for runs in section.by_label().values() for run in runs]


def _one(section: Section, run: Run | None) -> Cell:
    if run is None or run.record is None:
        return Cell("-" if run is None else "missing")
    lost = section.metric(run, "CF")
    text = percent(section.metric(run, "Ov")) + ("" if lost is None else f" ({percent(lost)})")
    return Cell(text, records=(run.digest,))


def _heads(shown: dict[str, str]) -> list[str]:
    return [f"{metric} {arrow}" for metric, arrow in shown.items()]


def _directions(shown: dict[str, str]) -> dict[str, bool]:
    """Return for each metric whether higher is better."""
    return {metric: arrow == "↑" for metric, arrow in shown.items()}


def _lams(run: Run) -> str:
    assert run.record is not None
    return ", ".join(short(one.get("lam")) for one in run.record["chosen"][1:]) or "-"


def _chosen(run: Run, task: int) -> dict[str, Any]:
    assert run.record is not None
    found: dict[str, Any] = run.record["chosen"][task - 1]
    return found


def _whole(run: Run) -> bool:
    """Return whether a run covers all tasks in a numbered order, as in the paper."""
    return run.where[0].isdigit() and run.spec.get("tasks") is None


def _papers(runs: Sequence[Run]) -> bool:
    """Return whether the paper has ablations for these runs."""
    return published.has_ablations_of(run.spec for run in runs)


def _mean_of(runs: Sequence[Run], number: Callable[[Record], float]) -> float:
    return fmean(number(run.record) for run in runs if run.record) if runs else 0.0


def _fraction(run: Run) -> float:
    return float(run.own.get("fraction", METHODS["la"].hyper_parameters()["fraction"].default))


def _total(passes: dict[str, dict[str, int]], way: str) -> int:
    return sum(counts[way] for counts in passes.values())

"""The figures of a report, made from its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from holdfast.methods import METHODS
from holdfast.report.means import UPPER, Scores, chance, half_width, mean_of, values
from holdfast.report.plots import Axis, Dash, Figure, Mark, Plot, Ridges, Series
from holdfast.report.runs import Run, Section

PALETTE = (
    "#0f8a72",
    "#d9640a",
    "#3f7fd0",
    "#c2549b",
    "#b38600",
    "#7a5cd6",
    "#c23b3b",
    "#4b9b2f",
    "#2797af",
    "#8a7560",
    "#dd6592",
    "#5b6fb5",
)
FAMILIAR = (
    *("la", "mas", "ancl-mas", "ancl-lwf", "upgd", "rp2f", "adabop", "la+slda", "slda", "frozen"),
    *("first+slda", "auto"),
)
REFERENCE = {"seq": "#868f99", "mtl": "#868f99"}
DASHES: dict[str, Dash] = {"seq": "dot", "mtl": "dash"}
SHARES = [50.0 + 2.5 * step for step in range(21)]  # of the best score on a new task, in percent
MOST_SPANS = 5  # curves up to which an interval is drawn after every task
DEFAULTS = ("auto", "slda")  # the default head, and the simpler one it grew from


def colour(method: str) -> str:
    """Return the colour of a method."""
    rest = [*FAMILIAR, *(name for name in METHODS if name not in FAMILIAR and name not in REFERENCE)]
    return REFERENCE.get(method) or PALETTE[rest.index(method) % len(PALETTE)]


def curves(section: Section) -> Figure | None:
    """Draw the mean score on the tasks learnt so far, after each task, with its 95 % interval."""
    longest = max((len(run.matrix) for run in section.made), default=0)
    if longest < 2:
        return None
    x = list(range(1, longest + 1))
    drawn = []
    for label, runs in section.by_label().items():
        made = [run for run in runs if run.record is not None]
        if made:
            drawn.append(_curve(section, label, made, x))
    beside = _beside(section)
    for method, runs in beside.items():
        drawn.append(_curve(section, f"{method}, another setting", runs, x, beside=True))
    crowded = sum(any(one.spans) for one in drawn) > MOST_SPANS
    if crowded:
        drawn = [replace(one, spans=[*[None] * (longest - 1), *one.spans[-1:]]) for one in drawn]
    note = "Mean over orders and seeds."
    if any(one.name.split(",")[0] == UPPER for one in drawn):
        note += f" {UPPER}, which learns all tasks at once, is a horizontal line."
    if any(one.spans for one in drawn):
        where = ", after the last task only" if crowded else ""
        note += (
            f" Bars{where}: 95 % interval of the mean over orders, or over the seeds of one order. For a "
            "single run: the interval over other test sentences, treating the score as a proportion."
        )
    if beside:
        note += " Lines without marks: the same sentences, learnt in another setting of this folder."
    axes = Axis("tasks learnt", whole=True), Axis("mean macro-F1 on these tasks", low=0.0)
    return Figure("Macro-F1 over tasks", Plot(drawn, *axes, height=320), note) if drawn else None


def _beside(section: Section) -> dict[str, list[Run]]:
    """Return the runs of the default head and of joint training, if the section lacks them."""
    found: dict[str, list[Run]] = {}
    for run in section.references((*DEFAULTS, UPPER)):
        found.setdefault(run.method, []).append(run)
    heads = [] if {run.method for run in section.made} & {*DEFAULTS} else [m for m in DEFAULTS if m in found]
    return {method: found[method] for method in (*heads[:1], UPPER) if method in found}


def _curve(
    section: Section, label: str, made: Sequence[Run], x: Sequence[int], *, beside: bool = False
) -> Series:
    method, plain = made[0].method, made[0].joint or beside
    y: list[float | None] = []
    spans: list[tuple[float, float] | None] = []
    for k in x:
        found, half = _after(section, made, k)
        mean = 100 * mean_of(found) if found else None
        y.append(None if mean is None else round(mean, 3))
        if mean is None or half is None or plain:
            spans.append(None)
        else:
            spans.append((max(mean - 100 * half, 0.0), min(mean + 100 * half, 100.0)))
    told = [
        f"{label}, after {k}: {'-' if value is None else f'{value:.2f}'}"
        for k, value in zip(x, y, strict=True)
    ]
    return Series(
        label,
        x,
        y,
        colour(method),
        line="dash" if beside else DASHES.get(method, "solid"),
        mark="" if plain else "dot",
        width=1.2 if beside else 1.8,
        spans=spans if any(spans) else (),
        words=told,
    )


def _after(section: Section, made: Sequence[Run], k: int) -> tuple[Scores, float | None]:
    """Return the Ov of each run after k tasks, and half the width of the interval of their mean."""
    if made[0].joint:
        return values(section, made, "Ov"), None
    far = [run for run in made if len(run.matrix) >= k]
    found = values(section, far, "Ov", k)
    return found, half_width(found) if len(found) > 1 else chance(far[0], k) if far else None


def trade_off(section: Section) -> Figure | None:
    """Draw stability against plasticity: CF and FWT of each run, and the mean of each method."""
    drawn = []
    for label, runs in section.by_label().items():
        points = [(section.metric(run, "FWT"), section.metric(run, "CF"), run) for run in runs]
        known = [(100 * fwt, 100 * cf, run) for fwt, cf, run in points if fwt is not None and cf is not None]
        if not known:
            continue
        tint = colour(known[0][2].method)
        names = [
            f"{label}, order {run.where[0]}, seed {run.where[1]}, record {run.digest}" for *_, run in known
        ]
        xs, ys = [fwt for fwt, _, _ in known], [cf for _, cf, _ in known]
        drawn.append(Series(label, xs, ys, tint, "", "dot", faint=True, named=False, words=names))
        means = [mean_percent(section, [run for *_, run in known], metric) for metric in ("FWT", "CF")]
        fwt, cf = (mean for mean in means if mean is not None)
        words = [f"{label}: FWT {fwt:.2f}, CF {cf:.2f}"]
        drawn.append(Series(label, [fwt], [cf], tint, "", "diamond", size=6.5, words=words))
    axes = Axis("FWT: plasticity relative to seq →"), Axis("← stability: CF", reversed=True)
    note = "Higher and further right is better. Small points are runs, diamonds the means of methods."
    return Figure("Stability and plasticity", Plot(drawn, *axes, height=320), note) if drawn else None


def trial_frontier(section: Section) -> Figure | None:
    """Draw what the trials of each method keep of earlier tasks, by the share of the new score they reach.

    A point is one method over all its trials, not only the chosen ones: the best score on earlier tasks
    among the trials that reach at least this share.
    """
    drawn = []
    for label, runs in section.by_label().items():
        paths = [points for run in runs if run.record for points in _tried(run.record)]
        if paths:
            kept = [[_kept(points, share) for share in SHARES] for points in paths]
            y = [100 * fmean(column) for column in zip(*kept, strict=True)]
            words = [f"{label}, from {share:.3g} %: {old:.1f}" for share, old in zip(SHARES, y, strict=True)]
            method = runs[0].method
            dash = DASHES.get(method, "solid")
            drawn.append(Series(label, SHARES, y, colour(method), dash, "dot", size=2.2, words=words))
    plasticity = Axis("at least this share of the best score on the new task, %")
    axes = plasticity, Axis("kept of earlier tasks, %", low=0)
    note = (
        "Of all trials of a search, the best validation score on earlier tasks among those that reach a "
        "share of the best one on the new task; means over later tasks, orders and seeds. No search sees "
        "earlier tasks."
    )
    return Figure("What trials keep", Plot(drawn, *axes, height=320), note) if drawn else None


def _tried(record: Mapping[str, Any]) -> Iterator[list[tuple[float, float]]]:
    """Yield, for each later task, the trials' scores on it and their mean scores on earlier tasks."""
    for lesson in record["trials"]:
        points = [
            (float(one["score"]), fmean(one["old"]))
            for one in lesson["trials"]
            if one.get("old") and one["score"] is not None
        ]
        if len(points) > 1:
            yield points


def _kept(points: Sequence[tuple[float, float]], share: float) -> float:
    best = max(new for new, _ in points)
    return max(old for new, old in points if new >= share / 100 * best)


def search_trace(run: Run) -> Figure | None:
    """Draw the validation scores of the search against λ, for each task."""
    assert run.record is not None
    drawn = []
    for number, lesson in enumerate(run.record["trials"]):
        tint, chosen = PALETTE[number % len(PALETTE)], run.record["chosen"][number]
        rate = chosen.get("lr")  # trials with other rates belong to the search for the rate
        seen = [one for one in lesson["trials"] if _on_the_grid(one) and one["choice"].get("lr") == rate]
        if not seen:
            continue
        seen.sort(key=lambda trial: trial["choice"]["lam"])
        plain = [trial for trial in seen if not _beyond_lam(trial["choice"])]
        rest = [trial for trial in seen if _beyond_lam(trial["choice"])]
        drawn.append(_trials(lesson["task"], plain, tint, "solid", "dot", width=1.5))
        if rest:
            drawn.append(_trials("and more", rest, tint, "", "cross", named=False))
        if isinstance(gold := chosen.get("gold"), int | float) and run.share is not None:
            ends = [seen[0]["choice"]["lam"], seen[-1]["choice"]["lam"]]
            level = [100 * gold * run.share] * 2
            drawn.append(Series("enough", ends, level, tint, "dot", width=1, named=False))
        if _on_the_grid({"choice": chosen, "score": chosen["score"]}):
            at = ([chosen["lam"]], [100 * chosen["score"]])
            drawn.append(Series("chosen", *at, tint, "", "ring", size=7, named=False))
    axes = Axis("λ", log=True), Axis("validation macro-F1")
    title = f"{run.label}, order {run.where[0]}, seed {run.where[1]}"
    note = (
        "Lines: λ alone; crosses: λ with λ_down, λ_up or λ_a; dotted: the required share of the score "
        "without a penalty. A ring marks the chosen trial; λ = 0 and ∞ cannot be shown on this axis."
    )
    return Figure(title, Plot(drawn, *axes, height=280), note, run.digest) if drawn else None


def _on_the_grid(trial: Mapping[str, Any]) -> bool:
    lam = trial["choice"].get("lam")
    return isinstance(lam, int | float) and lam > 0 and trial["score"] is not None


def _beyond_lam(choice: Mapping[str, Any]) -> bool:
    """Return whether a choice uses λ_down, λ_up or λ_a besides λ."""
    return choice.get("down") is not None or (choice.get("lam_a") or 0) > 0


def _trials(
    name: str, trials: Sequence[Mapping[str, Any]], tint: str, line: Dash, mark: Mark, **rest: Any
) -> Series:
    words = [
        ", ".join(
            f"{key} {value:.3g}" for key, value in one["choice"].items() if isinstance(value, int | float)
        )
        for one in trials
    ]
    lams, scores = [one["choice"]["lam"] for one in trials], [100 * one["score"] for one in trials]
    return Series(name, lams, scores, tint, line, mark, words=words, **rest)


def spread(run: Run) -> list[Figure]:
    """Draw the distribution of relative importance in each tensor, with the cut-off τ, for each task."""
    assert run.record is not None
    figures = []
    for chosen in run.record["chosen"]:
        tensors: Mapping[str, Any] = chosen.get("spread") or {}
        if not tensors:
            continue
        rows = [
            (
                _short(name),
                [round(100 * count / (sum(one["bins"]) or 1), 1) for count in one["bins"]],
                one["tau"],
            )
            for name, one in sorted(tensors.items())
        ]
        mean = fmean(one["mean"] for one in tensors.values())
        title = f"{run.label}, order {run.where[0]}, seed {run.where[1]}: {chosen['task']}"
        note = f"Each row is the histogram of one tensor; the mark is its cut-off τ. Mean ρ: {mean:.2f}."
        figures.append(Figure(title, Ridges(rows, "relative importance ρ"), note, run.digest))
    return figures


def mean_percent(
    section: Section, runs: Sequence[Run], metric: str, tasks: int | None = None
) -> float | None:
    """Return the mean as in the tables, in percent."""
    found = values(section, runs, metric, tasks)
    return 100 * mean_of(found) if found else None


def _short(name: str) -> str:
    """Return a tensor's name without `encoder`, `layer`, `module` and `dropout`."""
    parts = [part for part in name.split(".") if part not in ("encoder", "layer", "module", "dropout")]
    return ".".join(parts)

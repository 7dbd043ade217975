"""Figures in plotly's format: dictionaries of traces and layout. The page adds its theme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean
from typing import Any

from holdfast.methods import METHODS
from holdfast.report.means import mean_of, values
from holdfast.report.runs import Run, Section

PALETTE = (
    "#0f8a72",
    "#d9640a",
    "#3f7fd0",
    "#c2549b",
    "#b98a00",
    "#7a5cd6",
    "#c23b3b",
    "#4b9b2f",
    "#2a9fb8",
    "#8a7560",
    "#e0709a",
    "#5b6fb5",
)
FAMILIAR = ("la", "mas", "ancl-mas", "ancl-lwf", "upgd", "rp2f", "adabop", "la+slda", "slda", "frozen")
REFERENCE = {"seq": "#8c96a0", "mtl": "#8c96a0"}
DASHES = {"seq": "dot", "mtl": "dash"}


@dataclass(frozen=True)
class Figure:
    """A plotly figure with a title."""

    title: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    note: str = ""
    height: int = 380
    scrolls: bool = False
    """Whether it scrolls on a phone instead of shrinking, because of long names on its left."""
    record: str = ""
    """Digest of the record it shows, if it shows only one."""


def colour(method: str) -> str:
    """Return the colour of a method."""
    rest = [*FAMILIAR, *(name for name in METHODS if name not in FAMILIAR and name not in REFERENCE)]
    return REFERENCE.get(method) or PALETTE[rest.index(method) % len(PALETTE)]


def curves(section: Section) -> Figure | None:
    """Draw the mean score on the tasks learnt so far, after each task."""
    data = []
    longest = max((len(run.matrix) for run in section.made), default=0)
    for label, runs in section.by_label().items():
        made = [run for run in runs if run.record is not None]
        if not made or longest < 2:
            continue
        method = made[0].method
        x = list(range(1, longest + 1))
        if made[0].joint:
            y = [mean_percent(section, made, "Ov")] * longest
        else:
            y = [mean_percent(section, [run for run in made if len(run.matrix) >= k], "Ov", k) for k in x]
        line = {"color": colour(method), "dash": DASHES.get(method, "solid")}
        data.append(
            trace(
                label,
                x,
                y,
                line=line,
                text="<br>".join(["from the records", *(run.digest for run in made)]),
                mode="lines+markers" if not made[0].joint else "lines",
            )
        )
    layout = {
        "xaxis": {"title": "tasks learnt", "dtick": 1},
        "yaxis": {"title": "mean macro-F1 on these tasks", "rangemode": "tozero"},
    }
    note = (
        "Mean over orders and seeds; mtl, which learns all tasks at once, is a horizontal line without "
        "markers."
    )
    return Figure("Macro-F1 over tasks", data, layout, note) if data else None


def trade_off(section: Section) -> Figure | None:
    """Draw stability against plasticity: CF and FWT of each run, and the mean of each method."""
    data = []
    for label, runs in section.by_label().items():
        points = [(section.metric(run, "FWT"), section.metric(run, "CF"), run) for run in runs]
        known = [(100 * fwt, 100 * cf, run) for fwt, cf, run in points if fwt is not None and cf is not None]
        if not known:
            continue
        tint = colour(known[0][2].method)
        names = [f"order {run.where[0]}, seed {run.where[1]}, record {run.digest}" for _, _, run in known]
        few = {"color": tint, "size": 7, "opacity": 0.45}
        xs, ys = [fwt for fwt, _, _ in known], [cf for _, cf, _ in known]
        data.append(
            trace(label, xs, ys, mode="markers", marker=few, text=names, showlegend=False, legendgroup=label)
        )
        big = {"color": tint, "size": 13, "symbol": "diamond"}
        means = ([mean_percent(section, [run for _, _, run in known], metric)] for metric in ("FWT", "CF"))
        data.append(trace(label, *means, mode="markers", marker=big, legendgroup=label))
    layout = {
        "xaxis": {"title": "FWT: plasticity relative to seq →"},
        "yaxis": {"title": "← stability: CF", "autorange": "reversed"},
    }
    note = "Higher and further right is better. Small points are runs, diamonds the means of methods."
    return Figure("Stability and plasticity", data, layout, note, height=430) if data else None


def search_trace(run: Run) -> Figure | None:
    """Draw the validation scores of the search against λ, for each task."""
    assert run.record is not None
    data = []
    for number, lesson in enumerate(run.record["trials"]):
        tint, chosen = PALETTE[number % len(PALETTE)], run.record["chosen"][number]
        rate = chosen.get("lr")  # trials with other rates belong to the search for the rate
        seen = [one for one in lesson["trials"] if _on_the_grid(one) and one["choice"].get("lr") == rate]
        if not seen:
            continue
        seen.sort(key=lambda trial: trial["choice"]["lam"])
        plain = [trial for trial in seen if not _beyond_lam(trial["choice"])]
        rest = [trial for trial in seen if _beyond_lam(trial["choice"])]
        group = {"legendgroup": lesson["task"]}
        line = {"color": tint, "width": 1.5}
        data.append(_trials(lesson["task"], plain, mode="lines+markers", line=line, **group))
        if rest:
            cross = {"color": tint, "symbol": "x-thin-open", "size": 8}
            data.append(_trials("and more", rest, mode="markers", marker=cross, showlegend=False, **group))
        if isinstance(gold := chosen.get("gold"), int | float) and run.share is not None:
            ends = [seen[0]["choice"]["lam"], seen[-1]["choice"]["lam"]]
            enough = {"color": tint, "width": 1, "dash": "dot"}
            level = [100 * gold * run.share] * 2
            data.append(trace("enough", ends, level, mode="lines", line=enough, showlegend=False, **group))
        if _on_the_grid({"choice": chosen, "score": chosen["score"]}):
            ring = {"color": tint, "size": 14, "symbol": "circle-open", "line": {"width": 3}}
            at = ([chosen["lam"]], [100 * chosen["score"]])
            data.append(trace("chosen", *at, mode="markers", marker=ring, showlegend=False, **group))
    layout = {
        "xaxis": {"title": "λ", "type": "log", "exponentformat": "power"},
        "yaxis": {"title": "validation macro-F1"},
    }
    title = f"{run.label}, order {run.where[0]}, seed {run.where[1]}"
    note = (
        "Lines: λ alone; crosses: λ with λ_down, λ_up or λ_a; dotted: the required share of the score "
        "without a penalty. A ring marks the chosen trial; λ = 0 and ∞ cannot be shown on this axis."
    )
    return Figure(title, data, layout, note, height=330, record=run.digest) if data else None


def _on_the_grid(trial: Mapping[str, Any]) -> bool:
    lam = trial["choice"].get("lam")
    return isinstance(lam, int | float) and lam > 0 and trial["score"] is not None


def _beyond_lam(choice: Mapping[str, Any]) -> bool:
    """Return whether a choice uses λ_down, λ_up or λ_a besides λ."""
    return choice.get("down") is not None or (choice.get("lam_a") or 0) > 0


def _trials(name: str, trials: Sequence[Mapping[str, Any]], **rest: Any) -> dict[str, Any]:
    words = [
        ", ".join(
            f"{key} {value:.3g}" for key, value in one["choice"].items() if isinstance(value, int | float)
        )
        for one in trials
    ]
    lams, scores = [one["choice"]["lam"] for one in trials], [100 * one["score"] for one in trials]
    return trace(name, lams, scores, text=words, **rest)


def spread(run: Run) -> list[Figure]:
    """Draw the distribution of relative importance in each tensor, with the cut-off τ, for each task."""
    assert run.record is not None
    figures = []
    for chosen in run.record["chosen"]:
        tensors: Mapping[str, Any] = chosen.get("spread") or {}
        if not tensors:
            continue
        tensors = dict(sorted(tensors.items()))
        names = [_short(name) for name in tensors]
        shares = [
            [round(100 * count / (sum(one["bins"]) or 1), 1) for count in one["bins"]]
            for one in tensors.values()
        ]
        middles = [0.025 + 0.05 * i for i in range(20)]
        heat = {
            "type": "heatmap",
            "x": middles,
            "y": names,
            "z": shares,
            "colorscale": [[0, "rgba(15,138,114,0)"], [1, "rgba(15,138,114,1)"]],
            "colorbar": {"title": "%", "thickness": 10},
            "hovertemplate": "%{y}<br>ρ %{x:.2f}: %{z} %<extra></extra>",
        }
        cut = trace(
            "cut-off τ",
            [one["tau"] for one in tensors.values()],
            names,
            mode="markers",
            marker={
                "color": "#d9640a",
                "symbol": "line-ns-open",
                "size": 9,
                "line": {"width": 2, "color": "#d9640a"},
            },
        )
        layout = {
            "xaxis": {"title": "relative importance ρ", "range": [0, 1]},
            "yaxis": {"autorange": "reversed", "tickfont": {"size": 9}, "automargin": True},
            "showlegend": False,
        }
        mean = fmean(one["mean"] for one in tensors.values())
        title = f"{run.label}, order {run.where[0]}, seed {run.where[1]}: {chosen['task']}"
        note = f"Each row is the histogram of one tensor; the mark is its cut-off τ. Mean ρ: {mean:.2f}."
        height = max(300, 90 + 13 * len(names))
        figures.append(Figure(title, [heat, cut], layout, note, height, scrolls=True, record=run.digest))
    return figures


def trace(name: str, x: Sequence[Any], y: Sequence[Any], **rest: Any) -> dict[str, Any]:
    """Return a line or points of a figure."""
    rounded = [round(value, 3) if isinstance(value, float) else value for value in y]
    # Plotly reads names as markup.
    return {"type": "scatter", "name": escape(name, quote=False), "x": list(x), "y": rounded, **rest}


def mean_percent(
    section: Section, runs: Sequence[Run], metric: str, tasks: int | None = None
) -> float | None:
    """Return the mean as in the tables, in percent."""
    found = values(section, runs, metric, tasks)
    return 100 * mean_of(found) if found else None


def _short(name: str) -> str:
    """Return a tensor's name without `encoder`, `layer` and `module`."""
    parts = [part for part in name.split(".") if part not in ("encoder", "layer", "module")]
    return ".".join(parts)

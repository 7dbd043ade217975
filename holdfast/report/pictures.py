"""Small pictures as SVG: they open in any browser, and need nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

INK, PAPER, SOFT = "#1c2733", "#fbfaf7", "#667380"
CELL = 26


def confusion(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """A confusion matrix: gold labels down, predictions across, every row as shares of its own."""
    left = 30 + 7 * max((len(label) for label in labels), default=0)
    top = 40 + 5 * max((len(label) for label in labels), default=0)
    size = CELL * len(labels)
    parts = [_text(left, 20, "predicted across, gold down; shade: share of the gold label", colour=SOFT)]
    for row, (label, values) in enumerate(zip(labels, counts, strict=True)):
        y, total = top + CELL * row, sum(values)
        parts.append(_text(left - 8, y + 17, label, anchor="end"))
        x = left + CELL * row
        parts.append(
            f"<text transform='translate({x + 17} {top - 8}) rotate(-50)' font-size='12' fill='{INK}'>"
            f"{escape(label)}</text>"
        )
        for column, value in enumerate(values):
            share, tip = value / total if total else 0.0, escape(f"{label} as {labels[column]}: {value}")
            parts.append(
                f"<rect x='{left + CELL * column}' y='{y}' width='{CELL - 2}' height='{CELL - 2}' rx='3' "
                f"fill='{_shade(share)}'><title>{tip}</title></rect>"
            )
            if value:
                colour = "#fff" if share > 0.55 else INK
                middle = left + CELL * column + CELL / 2 - 1
                parts.append(_text(middle, y + 16, str(value), anchor="middle", colour=colour, size=10))
    return _svg(left + max(size + top, 400), top + size + 20, parts)


def layers(held: Mapping[str, tuple[float, float | None]]) -> str:
    """How strongly each layer is held: the past's importance, and its share beside the latest task's."""
    parts = [
        _text(20, 24, "What each layer holds fast to"),
        _text(
            20,
            44,
            "bar: mean importance for what was learnt, largest = 1; mark: relative importance",
            colour=SOFT,
        ),
    ]
    if not held:
        parts.append(
            _text(20, 76, "nothing: the encoder is as it came, and what was learnt is in the head's sums")
        )
    for number, (layer, (share, rho)) in enumerate(held.items()):
        y = 66 + 26 * number
        parts.append(_text(130, y + 14, layer, anchor="end"))
        parts.append(f"<rect x='140' y='{y}' width='400' height='18' rx='4' fill='#eceae3'/>")
        parts.append(
            f"<rect x='140' y='{y}' width='{400 * share:.1f}' height='18' rx='4' fill='{_shade(0.75)}'/>"
        )
        parts.append(_text(552, y + 14, f"{share:.2f}"))
        if rho is not None:
            x = 140 + 400 * rho
            parts.append(f"<rect x='{x - 1:.1f}' y='{y - 3}' width='2' height='24' fill='{INK}'/>")
            parts.append(_text(600, y + 14, f"ρ {rho:.2f}", colour=SOFT))
    return _svg(680, 90 + 26 * max(len(held), 1), parts)


def _shade(share: float) -> str:
    return f"hsl(164 45% {94 - 62 * share:.0f}%)"


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = INK, size: int = 12) -> str:
    place = f"x='{x:g}' y='{y:g}' text-anchor='{anchor}'"
    return f"<text {place} fill='{colour}' font-size='{size}'>{escape(text)}</text>"


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:g}' height='{height:g}' "
        f"viewBox='0 0 {width:g} {height:g}' font-family='system-ui, sans-serif'>"
        f"<rect width='100%' height='100%' fill='{PAPER}'/>{''.join(parts)}</svg>\n"
    )

"""Write the tables of README.md, docs/results.md and docs/studies from the records. Run by `make docs`."""

import json
import re
import runpy
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from holdfast.maths.metrics import percent
from holdfast.report.means import mean_of, values
from holdfast.report.runs import Run, Section, load_sections
from holdfast.report.statistics import estimate
from holdfast.studies import published

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
TABLE = re.compile(r"(?P<head>#### .+\n)\n(?P<rows>(?:\|.*\n)+)(?:\n(?P<note>[^#\n].*)\n)?")
BLOCK = re.compile(
    r"(<!-- table: (?P<name>[a-z-]+), written by docs/tables\.py -->\n)(?:.*\n)*?(<!-- end of table -->)"
)

Found = dict[str, list[Run]]
"""The finished runs of a section by method; a method's variant counts under its name."""


# ---- tables of a report, copied by heading --------------------------------------------------------------


def refreshed(page: str, report: str) -> str:
    """Return the page with its tables and their notes replaced by those of the report, matched by heading."""
    for table in TABLE.finditer(report):
        head, rows, note = table.group("head", "rows", "note")
        shown = f"{head}\n{rows}"
        there = rf"{re.escape(head)}\n(?:\|.*\n)+"
        if note:
            # The page wraps notes; a note is found by its first words, because the rest may have changed.
            shown += f"\n{textwrap.fill(note, 120, break_on_hyphens=False)}\n"
            there += rf"\n{re.escape(note[:12])}.*\n(?:.+\n)*"
        page, count = re.subn(there, shown.replace("\\", r"\\"), page)
        if head in page and not count:
            raise SystemExit(f"{head.strip()}: the note has changed; copy its first words to the page")
    return page


# ---- tables of docs/results.md --------------------------------------------------------------------------


def accuracy() -> str:
    """Return the default beside other uses of the same encoder, from results/accuracy."""
    streams = ("clinc150", "hwu64")
    found = {stream: _measured(stream) for stream in streams}
    names = {
        "default": "**`auto`, the default: lesson by lesson, nothing kept but sums**",
        "logistic": "joint logistic regression on the last layer",
        "logistic-own": "joint logistic regression on the three layers of `auto`",
        "setfit": "SetFit's recipe, joint, with a small budget",
        "slda": "`slda`, lesson by lesson",
        "nearest-mean": "nearest class mean, lesson by lesson",
        "adaptive": "`adaptive-classifier`, lesson by lesson; it keeps the sentences",
        "sgd": "`SGDClassifier.partial_fit`, lesson by lesson",
    }
    columns = [("hwu64", "all"), ("clinc150", "all"), *(("clinc150", shots) for shots in ("10", "5", "1"))]
    heads = ["method", "HWU64", "CLINC150", "10 sentences a label", "5", "1"]
    rows = []
    for name, words in names.items():
        cells = [found[stream].get(f"{name} {shots}", []) for stream, shots in columns]
        if any(cells):
            rows.append([words, *(f"{fmean(scores):.1f}" if scores else "-" for scores in cells)])
    return _markdown(heads, rows)


def front() -> str:
    """Return the rows of the front page, from results/accuracy."""
    names = {
        "default": "**`auto`, the default: lesson by lesson**",
        "logistic": "joint logistic regression on all sentences at once",
        "slda": "`slda`, lesson by lesson",
        "nearest-mean": "nearest class mean, lesson by lesson",
        "adaptive": "adaptive-classifier 0.3.1, lesson by lesson; keeps sentences",
    }
    found = [_measured(stream) for stream in ("clinc150", "hwu64")]
    rows = []
    for name, words in names.items():
        cells = [one.get(f"{name} all", []) for one in found]
        rows.append([words, *(f"{fmean(scores):.1f}" if scores else "-" for scores in cells)])
    return _markdown(
        ["", "CLINC150: 15 lessons of 10 labels", "HWU64: 5 lessons of 5, mean of 3 orders"], rows
    )


def class_incremental() -> str:
    """Return Ov and CF of every method on hwu64, in the printed setting, in ours, and in the paper."""
    printed, ours = _small("paper-small, hwu64"), _small("modern-small, hwu64")
    whole = {name: _in(RESULTS / "heads", "hwu64, preset full", name) for name in ("slda", "auto")}
    rows = []
    for name in dict.fromkeys([*ours.runs, *printed.runs]):
        cells = [*ours.cells(name), *printed.cells(name), *_papers("hwu64", name)]
        rows.append([f"`{name}`", *cells])
    rows += [[f"`{name}`, all data", *one.cells(name), *["-"] * 4] for name, one in whole.items()]
    return _markdown(["method", "Ov", "CF", "Ov, printed", "CF, printed", "Ov, paper", "CF, paper"], rows)


def domain_incremental() -> str:
    """Return Ov and CF of every method on annomi, capped and with all data, and in the paper."""
    capped, whole = _small("modern-small, annomi"), _in(RESULTS / "heads", "annomi, preset small")
    rows = []
    for name in dict.fromkeys([*capped.runs, *whole.runs]):
        rows.append([f"`{name}`", *capped.cells(name), *whole.cells(name), *_papers("annomi", name)])
    return _markdown(["method", "Ov", "CF", "Ov, all data", "CF, all data", "Ov, paper", "CF, paper"], rows)


class _Own:
    """A section's runs by method."""

    def __init__(self, section: Section, only: str = "") -> None:
        self.section = section
        self.runs: Found = {}
        for runs in section.by_label().values():
            made = [run for run in runs if run.record is not None]
            if made and only in ("", made[0].method):
                self.runs[made[0].method] = made

    def cells(self, method: str) -> list[str]:
        """Return the mean Ov with its standard deviation, and the mean CF."""
        runs = self.runs.get(method, [])
        ov, cf = (values(self.section, runs, metric) for metric in ("Ov", "CF"))
        if not ov:
            return ["-", "-"]
        spread = estimate(list(ov.values())).std
        wide = f" ({100 * spread:.1f})" if spread is not None else " (one order)"
        return [percent(mean_of(ov)) + wide, percent(mean_of(cf)) if cf else "-"]


def _small(begin: str) -> _Own:
    return _in(RESULTS / "small", begin)


def _in(folder: Path, begin: str, only: str = "") -> _Own:
    """Return the last section whose title begins so and that has the method: the latest plan."""
    sections, _ = load_sections(folder)
    alike = [_Own(section, only) for section in sections if section.title.startswith(begin)]
    return [own for own in alike if own.runs][-1]


def _papers(stream: str, method: str) -> Iterable[str]:
    ov, cf, *_ = published.MAIN[stream].get(method, (None,) * 4)
    return (ov or "-", (cf or "-").partition(" ")[0])


def _measured(stream: str) -> dict[str, list[float]]:
    """Return the scores of each use of the encoder, one for each order."""
    found: dict[str, list[float]] = {}
    for path in sorted((RESULTS / "accuracy").glob(f"{stream}-*-minilm-*.json")):
        for name, one in json.loads(path.read_text(encoding="utf-8")).items():
            if isinstance(one, dict) and "macro_f1" in one:
                found.setdefault(name, []).append(one["macro_f1"])
    return found


def _markdown(heads: list[str], rows: Iterable[list[str]]) -> str:
    head, *body = (f"| {' | '.join(line)} |\n" for line in (heads, *rows))
    return f"{head}|---|{'---:|' * (len(heads) - 1)}\n{''.join(body)}"


def frontier() -> str:
    """Return how much more than `mas` Look-Ahead keeps at equal new score, from results/frontier."""
    study = runpy.run_path(str(DOCS.parent / "benchmarks" / "frontier.py"))
    records = [one for one in study["records_in"](RESULTS / "frontier") if one["stream"] == "hwu64"]
    rows = []
    for name, words in {"la": "`la`", "la, head": "`la`, the head modulated too"}.items():
        found = {part: study["compared"](records, name, old=f"old_{part}") for part in ("valid", "test")}
        if not found["valid"]["count"]:
            continue
        curves = f"{found['valid']['pairs']} pairs, {found['valid']['count']} curves"
        rows.append([words, curves, *(_gap(one) for one in found.values())])
    return _markdown(["", "measured on", "old task, validation", "old task, test"], rows)


def _gap(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    return f"{100 * found['mean']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def language_models() -> str:
    """Return the main losses of the study of language models, from the tables of results/lm/report.md."""
    report = (RESULTS / "lm" / "report.md").read_text(encoding="utf-8")
    lines = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith("|")]
    # The columns begin with method, form, change, rate, strength, seeds, old ability, new ability.
    found: dict[tuple[str, ...], list[str]] = {}
    for method, _, change, rate, strength, seeds, *losses in (line for line in lines if len(line) > 7):
        if (change == "-" and (method, rate, strength) not in found) or seeds == "3/3":
            found[method, rate, strength] = [loss.partition(" ")[0] for loss in losses[:2]]
    names = {
        ("untouched", "-", "-"): "untouched",
        ("naive", "0.0004", "-"): "plain fine-tuning",
        ("mas", "0.0004", "0.01"): "`Protect` with plain importance (MAS), λ = 0.01",
        ("la", "0.0004", "0.01"): "`Protect` with relative importance (LA), λ = 0.01",
        ("naive", "5e-05", "-"): "plain fine-tuning at the best rate, eight times lower",
        ("wise", "0.0004", "0.5"): "averaging with the start (WiSE-FT, 0.5)",
        ("la-merge", "0.0004", "0.75"): "merging by relative importance (`la-merge`, 0.75)",
    }
    return _markdown(
        ["", "old ability", "new ability"], ([words, *found[key]] for key, words in names.items())
    )


WRITTEN: dict[str, Callable[[], str]] = {
    "front": front,
    "accuracy": accuracy,
    "class-incremental": class_incremental,
    "domain-incremental": domain_incremental,
    "frontier": frontier,
    "language-models": language_models,
}


def filled(page: str) -> str:
    """Return the page with its named tables made from the records."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{WRITTEN[block['name']]()}\n{block[3]}", page)


def pages() -> dict[Path, str]:
    """Return the current text of every page with tables from records."""
    report = (RESULTS / "small" / "report.md").read_text(encoding="utf-8")
    found = (DOCS.parent / "README.md", DOCS / "results.md", *sorted((DOCS / "studies").glob("*.md")))
    return {path: filled(refreshed(path.read_text(encoding="utf-8"), report)) for path in found}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")

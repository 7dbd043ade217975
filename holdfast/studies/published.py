"""The paper's published results, as printed, for comparison in reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Printed = tuple[
    str | None, str | None, str | None, str | None
]  # Ov, CF, BWT+, FWT; None where the paper prints a dash

MAIN: dict[str, dict[str, Printed]] = {
    "hwu64": {
        "mtl": ("93.94 (2.4)", None, None, None),
        "seq": ("15.22 (1.2)", "79.20 (9.4)", "0.00 (0.0)", None),
        "adabop": ("12.96 (6.2)", "62.30 (15.3)", "0.00 (0.0)", "-20.01 (23.6)"),
        "rp2f": ("14.01 (9.9)", "83.34 (3.7)", "0.00 (0.0)", "2.35 (4.7)"),
        "upgd": ("29.58 (4.7)", "74.73 (1.9)", "0.56 (0.8)", "13.13 (8.2)"),
        "ancl-mas": ("31.19 (6.4)", "71.86 (4.6)", "1.29 (0.7)", "12.05 (8.6)"),
        "ancl-lwf": ("21.64 (3.6)", "85.62 (6.2)", "1.72 (2.4)", "13.88 (7.7)"),
        "la": ("34.20 (7.4)", "67.44 (8.8)", "7.88 (11.1)", "11.37 (9.2)"),
    },
    "annomi": {
        "mtl": ("54.72 (2.7)", None, None, None),
        "seq": ("45.26 (3.5)", "11.86 (5.8)", "7.01 (1.7)", None),
        "adabop": ("44.1 (8.7)", "7.12 (6.9)", "3.68 (1.5)", "-7.18 (6.1)"),
        "rp2f": ("46.83 (5.8)", "7.99 (6.5)", "4.83 (1.1)", "-2.52 (4.9)"),
        "upgd": ("42.57 (0.9)", "3.86 (5.0)", "5.98 (2.9)", "-8.85 (1.7)"),
        "ancl-mas": ("43.90 (1.9)", "7.33 (3.4)", "4.36 (0.5)", "-7.77 (2.3)"),
        "ancl-lwf": ("50.02 (4.3)", "4.08 (3.4)", "7.61 (2.2)", "-2.84 (1.7)"),
        "la": ("50.48 (4.8)", "2.64 (1.5)", "5.64 (1.0)", "-3.98 (1.5)"),
    },
}
"""Mean (std) over three orders, with BERT-base."""


def settings_of(method: str) -> list[dict[str, Any]]:
    """Return the settings of a method for which the paper's numbers are shown."""
    variants: dict[str, list[dict[str, Any]]] = {
        "adabop": [{"fraction": 0.01, "selection": "fraction"}],
        "upgd": [{"order": "first"}],
    }
    return [{}, *variants.get(method, [])]


THRESHOLDS: dict[tuple[float, str], tuple[str, str, str, str, str]] = {
    (0.9, "ancl-lwf"): ("0.21", "25.09", "83.46", "0.00", "22.89"),
    (0.9, "ancl-mas"): ("4.5", "36.98", "67.95", "0.33", "22.23"),
    (0.9, "la"): ("4.5", "32.91", "71.37", "0.00", "20.57"),
    (0.8, "ancl-lwf"): ("0.22", "25.09", "83.46", "0.00", "22.89"),
    (0.8, "ancl-mas"): ("6.17", "52.62", "45.34", "0.00", "19.17"),
    (0.8, "la"): ("6.17", "48.92", "52.08", "11.36", "21.30"),
    (0.7, "ancl-lwf"): ("0.46", "24.75", "69.55", "3.64", "8.54"),
    (0.7, "ancl-mas"): ("6.85", "45.50", "36.58", "4.31", "1.52"),
    (0.7, "la"): ("6.85", "50.03", "46.94", "7.80", "17.54"),
    (0.6, "ancl-lwf"): ("0.51", "29.95", "73.14", "0.00", "18.64"),
    (0.6, "ancl-mas"): ("21.83", "45.45", "44.39", "0.00", "9.26"),
    (0.6, "la"): ("21.83", "45.84", "54.58", "3.05", "19.94"),
}
"""By thr and method, on the second order of hwu64: λ, Ov, CF, BWT+, FWT."""

TAU: dict[tuple[int, float], tuple[str, str, str, str, str]] = {
    (2, 0.90): ("1.00", "1.00", "70.56", "25.40", "58.29"),
    (2, 0.85): ("1.00", "1.00", "71.34", "23.84", "58.29"),
    (2, 0.80): ("1.00", "1.00", "71.8", "22.54", "57.91"),
    (2, 0.75): ("1.00", "1.00", "71.56", "22.63", "57.51"),
    (2, 0.70): ("1.00", "1.00", "72.48", "20.19", "56.93"),
    (3, 0.90): ("0.80", "1.00", "59.42", "42.84", "31.28"),
    (3, 0.85): ("0.73", "1.00", "61.57", "39.41", "31.07"),
    (3, 0.80): ("0.59", "1.00", "59.96", "42.18", "31.43"),
    (3, 0.75): ("0.20", "0.39", "58.7", "44.11", "31.48"),
    (3, 0.70): ("0.20", "1.00", "59.17", "42.68", "30.74"),
    (4, 0.90): ("0.33", "1.00", "50.35", "53.22", "20.73"),
    (4, 0.85): ("0.32", "1.00", "50.84", "52.30", "20.46"),
    (4, 0.80): ("0.31", "1.00", "53.16", "49.03", "20.27"),
    (4, 0.75): ("0.06", "1.00", "50.45", "53.16", "20.79"),
    (4, 0.70): ("0.01", "0.58", "47.86", "55.40", "19.59"),
}
"""By number of tasks and τ / mean ρ: λ_down, λ_up (× λ_max/λ), Ov, CF, FWT; λ is 4.5."""

REFERENCES = {"ancl-mas": {"CF": 4.0, "FWT": 31.0}, "ancl-lwf": {"CF": 42.0, "FWT": 60.0}}
"""After the second task; from the captions of the figures on weighting strategies."""


def has_ablations_of(specs: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether all runs are on the second order of hwu64, the only one with ablations in the paper."""
    return all(spec["stream"] == "hwu64" and str(spec["order"]) == "2" for spec in specs)

"""How far two sets of weights are apart."""

from __future__ import annotations

from holdfast.maths import params as P


def distance(found: P.Params, expected: P.Params) -> float:
    """The largest difference of an entry, over everything that is expected."""
    return max(float((found[name].double() - expected[name].double()).abs().max()) for name in expected)


def relative(found: P.Params, expected: P.Params, start: P.Params) -> float:
    """The largest error beside how far its tensor came."""
    return max(
        float((found[n].double() - expected[n]).abs().max() / (expected[n] - start[n].double()).abs().max())
        for n in expected
    )

"""The one exception a user is meant to read."""

from collections.abc import Collection
from difflib import get_close_matches
from importlib import import_module
from typing import Any


class HoldfastError(Exception):
    """Something the user can put right: one line saying what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2.

    >>> from holdfast import Learner
    >>> Learner.create("encoder", "aut")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: unknown method 'aut' (did you mean 'auto'?); ...
    """


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known one, or nothing."""
    folded = {name.casefold(): name for name in known}
    nearest = get_close_matches(word.casefold(), folded, n=1)
    return f" (did you mean {folded[nearest[0]]!r}?)" if nearest else ""


def require(module: str, extra: str) -> Any:
    """Import an optional package, or raise an error that names the extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise HoldfastError(
            f"this needs the package {error.name}; install it with: pip install 'holdfast[{extra}]'"
        ) from error

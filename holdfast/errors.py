"""The one exception a user is meant to read."""

from collections.abc import Collection
from difflib import get_close_matches


class HoldfastError(Exception):
    """Something the user can put right: one line saying what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


def did_you_mean(word: str, known: Collection[str]) -> str:
    """The end of an error about an unknown name: its nearest relative, or nothing."""
    folded = {name.casefold(): name for name in known}
    nearest = get_close_matches(word.casefold(), folded, n=1)
    return f" (did you mean {folded[nearest[0]]!r}?)" if nearest else ""

"""The one exception a user is meant to read."""


class HoldfastError(Exception):
    """Something the user can put right: one line saying what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2.
    """

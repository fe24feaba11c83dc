"""What can go wrong with a run, in one line each."""

from __future__ import annotations


class InputError(ValueError):
    """The input is wrong, or this machine lacks something: one line, with what would be right. Nothing was started."""


class RunError(RuntimeError):
    """A run could not be brought to its end: one line, with what may be left."""

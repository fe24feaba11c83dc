"""What can go wrong before anything has been done to a workload."""

from __future__ import annotations


class InputError(ValueError):
    """The input is wrong, or this machine lacks something: one line, with what would be right. Nothing was started."""

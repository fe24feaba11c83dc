"""The lab's one error."""

from __future__ import annotations


class LabError(RuntimeError):
    """The lab cannot do what was asked; the message says what was found and what to do."""

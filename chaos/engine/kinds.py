"""The kinds of faults that are installed, by name alone: known without loading any of them."""

from __future__ import annotations

from importlib.metadata import EntryPoints, entry_points

GROUP = "chaos.injectors"


def installed() -> EntryPoints:
    """The injectors that there are, ours and those that a site has added."""
    return entry_points(group=GROUP)


def implementations() -> list[str]:
    """All of them as ``module:Class``, by which an agent loads them."""
    return sorted(point.value for point in installed())

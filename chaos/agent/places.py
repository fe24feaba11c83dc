"""Where a node keeps what belongs to its faults: what must outlive a reboot, and what must not."""

from __future__ import annotations

import os


def state_folder() -> str:
    """Where this node keeps its records: ``CHAOS_STATE``, or /var/lib/chaos for root, or the user's state folder."""
    given = os.environ.get("CHAOS_STATE")
    if given:
        return given
    if os.geteuid() == 0:
        return "/var/lib/chaos"
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "chaos")


def records_folder(state: str) -> str:
    """The undo records below a state folder, one file a fault."""
    return os.path.join(state, "faults")


def runtime_folder() -> str:
    """Where locks are: ``CHAOS_RUNTIME``, or /run/chaos for root, or the user's runtime folder."""
    given = os.environ.get("CHAOS_RUNTIME")
    if given:
        return given
    if os.geteuid() == 0:
        return "/run/chaos"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return os.path.join(runtime, "chaos") if runtime else os.path.join(state_folder(), "run")

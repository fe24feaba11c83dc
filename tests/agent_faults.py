"""Finds and kills what holds faults on a lab's node, from outside of it."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

_MARKS = (b"chaos.agent.main", b"guardian.main()")


def parties(pidns: int) -> list[int]:
    """The agents and guardians in a PID namespace, by their ids out here."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            inside = each.name.isdigit() and (each / "ns/pid").stat().st_ino == pidns
            if inside and any(mark in (each / "cmdline").read_bytes() for mark in _MARKS):
                found.append(int(each.name))
        except OSError:  # it has just ended
            continue
    return found


def kill_everybody(pidns: int) -> None:
    """SIGKILL to all of them at once, and wait for their end: nobody is left who could undo anything."""
    waiting = [os.pidfd_open(pid) for pid in parties(pidns)]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none starts another meanwhile
        for process in waiting:
            signal.pidfd_send_signal(process, number)
    for process in waiting:
        select.select([process], [], [])
        os.close(process)

"""Which process is meant, beyond its number: numbers are given again, and a reboot forgets them all."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_START_FIELD = 22  # of /proc/PID/stat (man 5 proc_pid_stat)


def boot_id() -> str:
    """This boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def host() -> str:
    """This machine's name."""
    return socket.gethostname()


def identity(pid: int) -> dict[str, Any]:
    """A process of this machine, recognisable later.

    Returns:
        ``pid``, ``start`` (ticks since boot), ``boot``, and ``pidns``, the inode of the PID namespace in which the
        number counts: ours.

    Raises:
        ProcessLookupError: there is none of that number.
    """
    start = _start(pid)
    if start is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return {"pid": pid, "start": start, "boot": boot_id(), "pidns": _our_pidns()}


def alive(process: Mapping[str, Any]) -> bool | None:
    """Whether a process still runs; None where that cannot be known from here: it counts in another PID namespace."""
    if process["pidns"] != _our_pidns():  # asked first: in a lab's node the boot id is the node's
        return None
    if process["boot"] != boot_id():
        return False
    return bool(_start(process["pid"]) == process["start"])


def _start(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the command's name in brackets, may hold blanks and brackets itself.
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[_START_FIELD - 4])


def _our_pidns() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino

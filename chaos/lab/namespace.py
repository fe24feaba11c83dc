"""Linux namespaces: leave, enter, count them, and mount in them. Thin over the kernel's calls (man 7 namespaces)."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEWTIME = 0x00000080
NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000

MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    """Move this process (for ``NEWPID``: its future children) into new namespaces.

    Raises:
        OSError: EPERM without the right, ENOSPC or EINVAL where the kernel allows no (more) such namespaces.
    """
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, flag: int) -> None:
    """Enter the namespace behind a descriptor.

    Raises:
        OSError: EPERM without the right, EINVAL if the descriptor is of another kind.
    """
    _check(_libc.setns(fd, flag), "setns")


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """Call mount(2).

    Raises:
        OSError: with the kernel's reason.
    """
    encoded = [None if value is None else value.encode() for value in (source, target, kind, data)]
    _check(_libc.mount(encoded[0], encoded[1], encoded[2], flags, encoded[3]), f"mount {target}")


def die_with_parent(signal_number: int) -> None:
    """Ask the kernel for a signal to this process when the thread that started it ends (man 2 prctl)."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def open_namespace(kind: str, process: int | str = "self") -> int:
    """A descriptor of a process's namespace: ``kind`` is net, pid, mnt, user or uts."""
    return os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def inside_network(fd: int) -> Iterator[None]:
    """Run the body in another network namespace and come back, whatever happens. For this thread alone."""
    here = open_namespace("net", "thread-self")
    try:
        setns(fd, NEWNET)
        try:
            yield
        finally:
            setns(here, NEWNET)
    finally:
        os.close(here)


def new_network() -> int:
    """A descriptor of a fresh network namespace that nothing but the descriptor keeps alive."""
    here = open_namespace("net")
    try:
        unshare(NEWNET)
        try:
            return open_namespace("net")
        finally:
            setns(here, NEWNET)
    finally:
        os.close(here)


_REFERENCE = re.compile(r"(?:net|pid|mnt|user|uts):\[\d+\]")


def all_namespaces() -> set[str]:
    """Every namespace that anything on this machine refers to, as ``kind:[inode]``.

    Looks where namespaces can be held: /proc/*/ns, open descriptors and bind mounts. ``ip netns list`` shows none of a
    lab's, since they have no names.
    """
    found: set[str] = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        for folder in ("ns", "fd"):
            try:
                links = list((process / folder).iterdir())
            except OSError:  # the process has gone, or is not ours to look into
                continue
            for link in links:
                try:
                    target = str(link.readlink())
                except OSError:
                    continue
                if _REFERENCE.fullmatch(target):
                    found.add(target)
        try:
            found.update(_REFERENCE.findall((process / "mountinfo").read_text()))
        except OSError:
            continue
    return found

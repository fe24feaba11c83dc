"""Network namespaces by identity: a path such as /proc/1/fd/5 may lead elsewhere when a fault is undone.

A record keeps a namespace's inode with the path and the process through which it was reached. Whoever undoes looks for
the inode: at the path first, then everywhere. That it has gone is believed only after a complete search, or when the
machine has booted since: a namespace does not outlive a boot.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional, Set

from injectors import kernel
from injectors.contract import InjectorError

_OF_PROCESS = re.compile(r"/proc/(\d+)/")
_FIRST_PIDNS = 0xEFFFFFFC  # PROC_PID_INIT_INO: the PID namespace in which all processes can be seen


def identity(path: str) -> Dict[str, Any]:
    """What a record keeps of the namespace at a path.

    Returns:
        ``inode``, ``path``; ``pid`` and ``start`` (ticks since boot) of the process through which the path leads;
        ``pidns``, the inode of the PID namespace in which that is its id.

    Raises:
        InjectorError: there is none.
    """
    fd = kernel.open_network(path)
    try:
        inode = os.fstat(fd).st_ino
    finally:
        os.close(fd)
    through = _OF_PROCESS.match(path)
    pid = int(through[1]) if through else os.getpid()
    pidns = os.stat("/proc/self/ns/pid").st_ino
    return {"inode": inode, "path": path, "pid": pid, "start": kernel.start_ticks(pid), "pidns": pidns}


def find(kept: Dict[str, Any], boot: str) -> Optional[int]:
    """A descriptor of the namespace that a record keeps, which the caller closes; ``None`` if it has gone.

    Args:
        kept: what ``identity`` gave; a record of version 1 has the ``path`` alone, which then has to do.
        boot: the record's boot id.

    Raises:
        InjectorError: it was not found, but may be where this process cannot look.
    """
    if boot != kernel.boot_id():
        return None
    if "inode" not in kept:
        return _by_path(kept["path"])
    fd = _opened(kept["path"], kept["inode"])
    if fd is not None:
        return fd
    blind: List[str] = []
    pidns = os.stat("/proc/self/ns/pid").st_ino
    if pidns not in (_FIRST_PIDNS, kept["pidns"]):
        blind.append(f"the processes outside PID namespace {pidns}")
    for path in _everywhere(f"net:[{kept['inode']}]", blind):
        fd = _opened(path, kept["inode"])
        if fd is not None:
            return fd
    if blind:
        shown = ", ".join(blind[:3]) + (f" and {len(blind) - 3} more" if len(blind) > 3 else "")
        raise InjectorError(
            f"network namespace {kept['inode']} is no longer at {kept['path']}, and it cannot be told whether it has "
            f"gone: no look into {shown}; try again as root, outside of containers"
        )
    return None


def _by_path(path: str) -> Optional[int]:
    try:
        return kernel.open_network(path)
    except InjectorError as error:
        if isinstance(error.__cause__, (FileNotFoundError, ProcessLookupError)):
            return None
        raise


def _opened(path: str, inode: int) -> Optional[int]:
    try:
        fd = kernel.open_network(path)
    except InjectorError:
        return None
    if os.fstat(fd).st_ino == inode:
        return fd
    os.close(fd)
    return None


def _everywhere(name: str, blind: List[str]) -> List[str]:
    """Paths at which a namespace can be opened: of the threads in it, of descriptors, of mounts.

    Args:
        name: as /proc shows it, ``net:[INODE]``.
        blind: gets what could not be looked into.
    """
    found: List[str] = []
    mounts_seen: Set[int] = set()
    for pid in kernel.processes():
        try:
            found += [path for path, what in kernel.descriptors(pid).items() if what == name]
            found += [path for path in _threads(pid) if os.readlink(path) == name]
            mounts = os.stat(f"/proc/{pid}/ns/mnt").st_ino
            if mounts not in mounts_seen:
                mounts_seen.add(mounts)
                found += _mounted(pid, name)
        except (FileNotFoundError, ProcessLookupError):  # it has just ended; a zombie has nothing
            continue
        except OSError as error:
            blind.append(f"process {pid} ({error.strerror})")
    return found


def _threads(pid: int) -> List[str]:
    """Where the network namespaces of a process's threads are: a single one may have entered another."""
    return [f"/proc/{pid}/task/{thread}/ns/net" for thread in os.listdir(f"/proc/{pid}/task")]


def _mounted(pid: int, name: str) -> List[str]:
    """Where a process sees the namespace mounted (`ip netns` does that)."""
    found = []
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split()  # id, parent, device, root, mount point, ...
            if fields[3] == name:
                found.append(f"/proc/{pid}/root{fields[4]}")
    return found

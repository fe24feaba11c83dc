"""Control groups of our own, in which a fault's processes are for as long as it lasts.

Each is a child of the cgroup in which its processes were, so that every limit that holds for them goes on holding, and
so that their home cannot vanish meanwhile. In version 1 every controller has a hierarchy of its own. In version 2 a
cgroup that hands controllers on may hold no process itself: what else is in the home is moved into a second child,
``...-rest``, and back in the end.

A cgroup's name is its mark: ``chaos-``, the PID namespace whose process ids are in it, and the fault, hashed. What
``clear`` needs beyond that (the fault's id, controllers that were switched on) is in an extended attribute.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Collection, Dict, FrozenSet, Iterable, List, Optional, Tuple

from injectors import _processes, kernel
from injectors.contract import InjectorError

INITIAL_PIDNS = 0xEFFFFFFC  # the kernel's own number of the PID namespace that it starts with
_NAME = re.compile(r"(chaos-([0-9]+)-[0-9a-f]{16})-(?:[0-9]+|rest)")
_ATTRIBUTE = "trusted.chaos"
_PATIENCE = 1.0  # seconds for a process that exits to have left its cgroup
_ROUNDS = 20  # looks for processes that were forked while their parents were moved
# What our limits are when they limit nothing, by version: files are written in this order, where they exist.
_OPEN = {
    1: (
        ("cpu.cfs_quota_us", "-1"),
        ("memory.memsw.limit_in_bytes", "-1"),
        ("memory.limit_in_bytes", "-1"),
        ("memory.oom_control", "0"),
        ("freezer.state", "THAWED"),
    ),
    2: (
        ("cpu.max", "max"),
        ("memory.max", "max"),
        ("memory.high", "max"),
        ("memory.swap.max", "max"),
        ("cgroup.freeze", "0"),
    ),
}


@dataclass(frozen=True)
class Hierarchy:
    """A mounted hierarchy of cgroups.

    Attributes:
        version: 1 or 2.
        controllers: what it can limit.
        mount: where it is mounted.
        root: the cgroup that is mounted there, seen from our cgroup namespace.
    """

    version: int
    controllers: FrozenSet[str]
    mount: str
    root: str

    def home(self, pid: int, thread: Optional[int] = None) -> str:
        """The directory of the cgroup in which a process (or one thread of it) is.

        Raises:
            InjectorError: it has gone, or is in a cgroup that cannot be seen from here.
        """
        where = f"/proc/{pid}/cgroup" if thread is None else f"/proc/{pid}/task/{thread}/cgroup"
        try:
            with open(where, encoding="utf-8", errors="surrogateescape") as file:
                lines = [line.rstrip("\n").split(":", 2) for line in file]
        except (FileNotFoundError, ProcessLookupError) as error:
            raise InjectorError(f"process {pid} has gone") from error
        for number, names, path in lines:
            mine = number == "0" if self.version == 2 else self.controllers <= set(names.split(","))
            if mine:
                return self._directory(pid, path)
        raise InjectorError(f"process {pid} is in no cgroup of {self.mount}")

    def _directory(self, pid: int, path: str) -> str:
        below = os.path.relpath(path, self.root)
        directory = os.path.normpath(os.path.join(self.mount, below))
        if path.startswith("/..") or below.startswith("..") or not os.path.isdir(directory):
            raise InjectorError(
                f"process {pid} is in the cgroup {path}, which cannot be seen from here ({self.mount} shows {self.root}"
                "): run the agent outside of the container"
            )
        return directory


def hierarchies() -> List[Hierarchy]:
    """All that are mounted here, each once."""
    found: Dict[Tuple[int, FrozenSet[str]], Hierarchy] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            mount, _, kind = line.partition(" - ")
            fields, (name, _, options) = mount.split(), kind.split()[:3]
            if name == "cgroup":
                controllers = frozenset(options.split(",")) - {"rw", "ro", "xattr", "clone_children", "noprefix"}
                version = 1
            elif name == "cgroup2":
                controllers, version = frozenset(read_words(os.path.join(fields[4], "cgroup.controllers"))), 2
            else:
                continue
            found.setdefault((version, controllers), Hierarchy(version, controllers, fields[4], fields[3]))
    return list(found.values())


def hierarchy(controller: str) -> Optional[Hierarchy]:
    """Where a controller is; ``freezer`` is a part of version 2 itself."""
    there = hierarchies()
    by_name = next((each for each in there if controller in each.controllers), None)
    if by_name is None and controller == "freezer":
        return next((each for each in there if each.version == 2), None)
    return by_name


@dataclass
class Group:
    """A cgroup of ours, as a record keeps it.

    Attributes:
        path: its directory; the one above is the home of its processes.
        version: of its hierarchy.
        fault: the fault's id.
        limits: file, value (``+N``: so much more than there is, in ``usage``), in the order in which they are written.
        usage: the file that says how much there is.
        enabled: version 2: controllers that the home must hand on, and did not.
        at_fire: its process joins at the fault's instant, and finds the limits there; else it joins beforehand.
        target: ``pid`` and ``start`` of the process that it is for; ``None``: it holds the rest of the home.
        homes: where the processes that it is for, and those of their threads that were apart, come from: see ``homes``.
    """

    path: str
    version: int
    fault: str
    limits: List[List[str]] = field(default_factory=list)
    usage: Optional[str] = None
    enabled: List[str] = field(default_factory=list)
    at_fire: bool = False
    target: Optional[Dict[str, int]] = None
    homes: List[Dict[str, Any]] = field(default_factory=list)

    @classmethod
    def at(cls, path: str) -> Group:
        """One that was found by its mark alone."""
        version = 2 if os.path.exists(os.path.join(path, "cgroup.events")) else 1
        fault, enabled = "", []
        with contextlib.suppress(OSError, ValueError, KeyError):
            kept = json.loads(os.getxattr(path, _ATTRIBUTE))
            fault, enabled = str(kept["fault"]), list(kept["enabled"])
        return cls(path, version, fault, enabled=enabled)

    def as_dict(self) -> Dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @property
    def home(self) -> str:
        """The directory of the cgroup to which its processes belong."""
        return os.path.dirname(self.path)

    @property
    def there(self) -> bool:
        """Whether it exists."""
        return os.path.isdir(self.path)

    def members(self) -> List[int]:
        """The processes in it that can be seen from here; empty where it has gone."""
        return members(self.path)

    # -- making ------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make it; nobody is in it."""
        try:
            os.mkdir(self.path)
        except OSError as error:
            raise InjectorError(f"no cgroup {self.path}: {error.strerror}") from error
        with contextlib.suppress(OSError):  # its name says the most
            mark = json.dumps({"fault": self.fault, "enabled": self.enabled})
            os.setxattr(self.path, _ATTRIBUTE, mark.encode())
        kind = os.path.join(self.path, "cgroup.type")
        if self.version == 2 and read_words(kind) != ["domain"]:
            raise InjectorError(f"{self.home} is a threaded cgroup: its processes cannot be limited one by one")

    def enable(self) -> None:
        """Version 2: have the home hand controllers on to us."""
        if self.enabled:
            write(os.path.join(self.home, "cgroup.subtree_control"), " ".join(f"+{name}" for name in self.enabled))

    def tighten(self) -> None:
        """Set the limits."""
        for name, value in self.limits:
            if value.startswith("+"):
                assert self.usage is not None, "what it is more than"
                there = int(read_words(os.path.join(self.path, self.usage))[0])
                write(os.path.join(self.path, name), str(there + int(value)))
            else:
                write(os.path.join(self.path, name), value)

    def loosen(self) -> None:
        """Let the limits limit nothing; no error where it has gone."""
        for name, value in _OPEN[self.version]:
            path = os.path.join(self.path, name)
            if os.path.exists(path):
                write(path, value)
        for name, value in self.limits:  # those of block devices: 8:0 1000000, or 8:0 rbps=1000000 wbps=1000000
            if name.startswith("blkio.throttle."):
                self._write_if_there(name, value.split()[0] + " 0")
            elif name == "io.max":
                self._write_if_there(name, value.split()[0] + " rbps=max wbps=max")

    def _write_if_there(self, name: str, value: str) -> None:
        path = os.path.join(self.path, name)
        if os.path.exists(path):
            write(path, value)

    def join(self, family: Callable[[], Collection[int]]) -> None:
        """Move processes in, also those that they fork meanwhile.

        Args:
            family: who is to be in it now; asked again until all of them are.

        Raises:
            InjectorError: they fork too fast, or one cannot be moved.
        """
        for _ in range(_ROUNDS):
            missing = set(family()) - set(self.members())
            moved = [self._take(pid) for pid in missing]
            if not any(moved):
                return
        raise InjectorError(f"processes are forked faster than they can be moved into {self.path}")

    def _take(self, pid: int) -> bool:
        """Move one in. Returns whether it was still there."""
        try:
            write(os.path.join(self.path, "cgroup.procs"), str(pid))
        except Gone:
            return False
        except InjectorError as error:
            raise InjectorError(f"process {pid} cannot be moved: {error}") from error
        return True

    # -- ending ------------------------------------------------------------------------------------------------------

    def disable(self) -> None:
        """Version 2: have the home hand on no more than before, so that it may hold processes again."""
        control = os.path.join(self.home, "cgroup.subtree_control")
        ours = set(self.enabled) & set(read_words(control))
        if ours and self.there:
            write(control, " ".join(f"-{name}" for name in sorted(ours)))

    def dissolve(self) -> None:
        """Move everybody home, and remove it; no error where it has gone.

        Raises:
            InjectorError: somebody in it cannot be moved, or cannot be seen from here.
        """
        end = time.monotonic() + _PATIENCE
        while self.there:
            for pid in self.members():
                self._send_home(pid)
            try:
                os.rmdir(self.path)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > end:
                    raise InjectorError(self._why_not_removed(error)) from error
                time.sleep(0.001)  # one that exits, or was forked just now

    def _why_not_removed(self, error: OSError) -> str:
        inside = [entry.path for entry in os.scandir(self.path) if entry.is_dir()]
        if inside:
            return f"{self.path} cannot be removed: {', '.join(inside)}, which somebody else has made, is in it"
        return f"{self.path} cannot be removed ({error.strerror}): a process that cannot be seen from here is in it"

    def _send_home(self, pid: int) -> None:
        threads = [(int(name), self._home_of(pid, int(name))) for name in _threads(pid)]
        home = self._home_of(pid, None)
        with contextlib.suppress(Gone):
            write(os.path.join(_nearest(home), "cgroup.procs"), str(pid))
            for thread, there in threads:
                if there != home:
                    write(os.path.join(_nearest(there), "tasks"), str(thread))

    def _home_of(self, pid: int, thread: Optional[int]) -> str:
        """Where a process of ours belongs, or one of its threads; one that was forked meanwhile: with its parent."""
        known = {(each["pid"], each["start"], each["thread"]): each["home"] for each in self.homes}
        while pid > 0:
            fields = kernel.stat_fields(pid)
            if fields is None:
                break
            for key in ((pid, int(fields[19]), thread), (pid, int(fields[19]), None)):
                if key in known:
                    return str(known[key])
            pid, thread = int(fields[1]), None
        return self.home


class Gone(InjectorError):
    """The process has ended."""


def write(path: str, value: str) -> None:
    """Write one value.

    Raises:
        Gone: the process whose id it is has ended.
        InjectorError: the kernel refuses; says what it means.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno == errno.ESRCH:
            raise Gone(f"process {value} has ended") from error
        name = os.path.basename(path)
        why = error.strerror
        if error.errno == errno.EINVAL and name in ("cpu.cfs_quota_us", "cgroup.procs"):
            cause = {
                "cpu.cfs_quota_us": "a cgroup above allows less than that already",
                "cgroup.procs": "a kernel thread, or one with a real-time thread",
            }
            why = f"{why}: {cause[name]}"
        raise InjectorError(f"{value!r} cannot be written to {path}: {why}") from error


def name(fault: str, pidns: Optional[int] = None) -> str:
    """The mark of a fault's cgroups: their names without the number."""
    where = _processes.namespace() if pidns is None else pidns
    return f"chaos-{where}-{hashlib.sha256(fault.encode()).hexdigest()[:16]}"


def marked(path: str) -> Optional[str]:
    """The mark in a directory's name; ``None`` where it has none."""
    match = _NAME.fullmatch(os.path.basename(path))
    return match[1] if match else None


def found() -> List[str]:
    """Directories of this PID namespace's faults, and of namespaces that have gone, which nobody else could clear."""
    there: Dict[str, int] = {}
    for each in hierarchies():
        for folder, inside, _ in os.walk(each.mount):
            for entry in inside:
                match = _NAME.fullmatch(entry)
                if match:
                    there[os.path.join(folder, entry)] = int(match[2])
    here = _processes.namespace()
    alive = _namespaces() if here == INITIAL_PIDNS and any(pidns != here for pidns in there.values()) else None
    return sorted(path for path, pidns in there.items() if pidns == here or (alive is not None and pidns not in alive))


def _namespaces() -> Optional[FrozenSet[int]]:
    """All PID namespaces that there are; ``None`` where that cannot be told for certain."""
    seen = set()
    for pid in kernel.processes():
        try:
            seen.add(os.stat(f"/proc/{pid}/ns/pid").st_ino)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            return None
    return frozenset(seen)


def homes(each: Hierarchy, processes: Iterable[int]) -> List[Dict[str, Any]]:
    """Where processes and their threads are: ``pid``, ``start``, ``thread`` (``None``: the process) and ``home``.

    A thread is listed only where it is elsewhere than its process. Those that have gone are left out.
    """
    listed: List[Dict[str, Any]] = []
    for pid in processes:
        start = kernel.start_ticks(pid)
        try:
            home = each.home(pid)
            apart = [(thread, each.home(pid, thread)) for thread in _threads(pid)] if each.version == 1 else []
        except InjectorError:
            if not _threads(pid):
                continue
            raise
        listed.append({"pid": pid, "start": start, "thread": None, "home": home})
        listed += [
            {"pid": pid, "start": start, "thread": thread, "home": there} for thread, there in apart if there != home
        ]
    return listed


def _threads(pid: int) -> List[int]:
    try:
        return [int(entry) for entry in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def members(directory: str) -> List[int]:
    """The processes in a cgroup that can be seen from here; none where it has gone."""
    listed = {int(word) for word in read_words(os.path.join(directory, "cgroup.procs"))}
    return sorted(listed - {0})  # 0 is one of another PID namespace; written back, it would mean ourselves


def _nearest(directory: str) -> str:
    """A cgroup, or where it has vanished the nearest one above it."""
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    return directory


def read_words(path: str) -> List[str]:
    """The words of a small file; none where it has gone."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError as error:
        if error.errno == errno.ENODEV:  # a cgroup that is being removed
            return []
        raise InjectorError(f"{path} cannot be read: {error.strerror}") from error


def figures(path: str) -> Dict[str, int]:
    """A file of lines with a name and a number, such as cpu.stat; empty where it has gone."""
    words = read_words(path)
    pairs = zip(words[::2], words[1::2])
    return {key: int(value) for key, value in pairs if value.isdigit()}


def figure(path: str) -> int:
    """A file with one number; 0 where it has gone."""
    words = read_words(path)
    return int(words[0]) if words else 0

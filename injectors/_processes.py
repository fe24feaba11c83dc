"""Which processes a fault is on: the rank's or the launcher's own, or those of a node that match what was asked for.

A process is known by its id, its start time and its PID namespace, never by its name: ids are reused, and what a
document says of an argument vector plays no part any more once the process is found.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Collection, Dict, List, Literal, Optional, Sequence, Tuple

from injectors import kernel
from injectors.contract import Evidence, InjectorError, Order, Phase

_ID = re.compile(r"[0-9a-f]{12,64}")  # a container's id, in full or as `docker ps` shows it
CPU_SAMPLE = 0.03  # seconds between two looks at the CPU time of processes
_MOST_SHOWN, _LONGEST_SHOWN = 10, 120  # processes in an error, and characters of an argument vector
_OURS = ("chaos.agent.main", "guardian.main()")  # in the argument vectors of agents and guardians, whoever's they are
_CRITERIA = ("argv", "argv_matches", "device", "cgroup", "container", "slurm_job")


@dataclass(frozen=True)
class Matching:
    """Parameters that say which processes of a node are meant: all that are given must hold for a process."""

    argv: Optional[List[str]] = field(
        default=None, metadata={"help": "the whole argument vector, word for word, of processes on the node"}
    )
    argv_matches: Optional[str] = field(
        default=None,
        metadata={"help": "a regular expression that is found in the whole argument vector, quoted as a shell would"},
    )
    device: Optional[str] = field(
        default=None, metadata={"help": "a device file that the process has open, such as /dev/nvidia0"}
    )
    cgroup: Optional[str] = field(
        default=None, metadata={"help": "a cgroup as /proc/PID/cgroup names it: its processes and those below it"}
    )
    container: Optional[str] = field(
        default=None, metadata={"help": "the id of a container, at least its first 12 digits"}
    )
    slurm_job: Optional[int] = field(default=None, metadata={"help": "the number of a Slurm job"})
    which: Optional[Literal["one", "first", "all"]] = field(
        default=None,
        metadata={
            "help": "where several match: refuse (``one``, the default), take the oldest (``first``), or take ``all``"
        },
    )
    missing: Optional[Literal["error", "ok"]] = field(
        default=None,
        metadata={"help": "where nothing matches: an ``error`` (the default), or a fault without any effect (``ok``)"},
    )

    def __post_init__(self) -> None:
        if self.argv is not None and not self.argv:
            raise ValueError("found an empty argv; write the whole argument vector, such as [python3, train.py]")
        if self.argv_matches is not None:
            try:
                re.compile(self.argv_matches)
            except re.error as error:
                raise ValueError(f"found argv_matches {self.argv_matches!r}, no regular expression: {error}") from None
        if self.device is not None and not self.device.startswith("/dev/"):
            raise ValueError(f"found device {self.device!r}; write a device file, such as /dev/nvidia0")
        if self.cgroup is not None and (not self.cgroup.startswith("/") or self.cgroup.startswith("/sys/")):
            raise ValueError(
                f"found cgroup {self.cgroup!r}; write it as /proc/PID/cgroup does, without its mount point"
            )
        if self.container is not None and not _ID.fullmatch(self.container):
            raise ValueError(f"found container {self.container!r}; write 12 to 64 hexadecimal digits of its id")
        if self.slurm_job is not None and self.slurm_job < 1:
            raise ValueError(f"found slurm_job {self.slurm_job}; write the number of a job, 1 or more")

    def target_problem(self, keys: Collection[str]) -> Optional[str]:
        """What is wrong with these parameters and a target of these keys; ``None`` where they fit."""
        return _unfit(asdict(self), "node" in keys)


def _unfit(params: Dict[str, Any], on_node: bool) -> Optional[str]:
    given = [key for key in _CRITERIA if params[key] is not None]
    if on_node and not given:
        return "found a node, but not which of its processes; write one of " + ", ".join(_CRITERIA)
    if not on_node and given:
        return f"found {given[0]}, which chooses among a node's processes; write on: {{node: 0}}, or leave it out"
    more = [key for key in ("which", "missing") if params[key] is not None]
    if not on_node and more:
        return f"found {more[0]}, which is for a node's processes; write on: {{node: 0}}, or leave it out"
    return None


@dataclass(frozen=True)
class Found:
    """The processes of a fault.

    Attributes:
        processes: each ``pid``, ``start`` (ticks since boot) and ``pidns``; empty where none had to be there.
        asked: what was asked for, in words.
        left_out: what matched as well and is never hit, in words.
    """

    processes: Tuple[Dict[str, int], ...]
    asked: str
    left_out: Tuple[str, ...] = ()


class Resolver:
    """Finds an order's processes once: what is locked for it and what is planned are the same.

    Args:
        kind: of the fault, for its errors.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._known: Optional[Tuple[Order, Found]] = None

    def find(self, order: Order) -> Found:
        """The processes, each of them running now.

        Raises:
            InjectorError: there is none, or several where one is asked for, or one that is never hit.
        """
        if order.target.process is not None or order.target.rank is not None or order.target.role is not None:
            return self._given(order)
        if self._known is None or self._known[0] != order:
            self._known = (order, self._match(order))
            return self._known[1]
        found = self._known[1]
        alive = tuple(each for each in found.processes if runs(each))
        if found.processes and not alive:
            raise InjectorError(f"{self._kind}: what matched {found.asked} has ended meanwhile")
        return Found(alive, found.asked, found.left_out)

    def names(self, order: Order) -> Tuple[str, ...]:
        """The same for locks: each the same for everybody in its PID namespace.

        Raises:
            InjectorError: as ``find`` does for processes that must be looked for.
        """
        given = order.target.process
        processes = self.find(order).processes if given is None else (given,)
        return tuple(f"{each['pidns']}:{each['pid']}:{each['start']}" for each in processes)

    def _given(self, order: Order) -> Found:
        whose = words(asdict(order.target))
        problem = _unfit(asdict(order.params), on_node=False)
        if problem is not None:
            raise InjectorError(f"{self._kind}: {problem}")
        wanted = order.target.process
        if wanted is None:
            raise InjectorError(f"{self._kind}: no process of {whose} is known yet: it has not said that it runs")
        here = namespace()
        if wanted["pidns"] != here:
            raise InjectorError(f"the process of {whose} is in PID namespace {wanted['pidns']}, this agent in {here}")
        if wanted["pid"] in ancestors():
            raise InjectorError(f"process {wanted['pid']} is this agent or above it: it is never hit")
        if kernel.start_ticks(wanted["pid"]) != wanted["start"]:
            raise InjectorError(f"the process {wanted['pid']} of {whose} has gone")
        if child_of_ours(wanted["pid"]):
            raise InjectorError(f"process {wanted['pid']} was started by this agent, such as its guardian: never hit")
        return Found((wanted,), whose)

    def _match(self, order: Order) -> Found:
        params = asdict(order.params)
        problem = _unfit(params, on_node=True)
        if problem is not None:
            raise InjectorError(f"{self._kind}: {problem}")
        search = _Search(params)
        matched, left_out, above = [], [], ancestors()
        for pid in sorted(kernel.processes()):
            if not search.fits(pid):
                continue
            start, why = kernel.start_ticks(pid), _never(pid, above)
            if start is None:
                continue
            if why is None:
                matched.append({"pid": pid, "start": start, "pidns": namespace()})
            else:
                left_out.append(f"process {pid} ({why})")
        matched.sort(key=lambda each: (each["start"], each["pid"]))
        unseen = f" ({search.unseen} processes of other users could not be looked into)" if search.unseen else ""
        if not matched:
            also = f"; never hit: {', '.join(left_out)}" if left_out else ""
            if params["missing"] != "ok":
                raise InjectorError(f"{self._kind}: nothing matches {search.asked} on this node{also}{unseen}")
            return Found((), search.asked, tuple(left_out))
        if len(matched) > 1 and params["which"] not in ("first", "all"):
            raise InjectorError(
                f"{self._kind}: {len(matched)} processes match {search.asked} on this node, one is asked for: "
                f"{_listed(matched)}; say more of the one that is meant, or write which: first or which: all"
            )
        chosen = matched if params["which"] == "all" else matched[:1]
        return Found(tuple(chosen), search.asked, tuple(left_out))


class _Search:
    """What a process must be like.

    Attributes:
        asked: the same in words.
        unseen: how many processes could not be looked into.
    """

    def __init__(self, params: Dict[str, Any]) -> None:
        self._params = params
        self.asked = " and ".join(
            f"{key.replace('_', ' ')} {shlex.join(value) if key == 'argv' else value}"
            for key, value in ((key, params[key]) for key in _CRITERIA)
            if value is not None
        )
        self.unseen = 0
        self._pattern = None if params["argv_matches"] is None else re.compile(params["argv_matches"])
        self._device: Optional[int] = None
        if params["device"] is not None:
            try:
                found = os.stat(params["device"])
            except OSError as error:
                raise InjectorError(f"no device {params['device']} on this node: {error.strerror}") from error
            self._device = found.st_rdev
            if not self._device:
                raise InjectorError(f"{params['device']} is no device")

    def fits(self, pid: int) -> bool:
        """Whether a process that runs is meant."""
        fields = kernel.stat_fields(pid)
        if fields is None or fields[0] in "ZX":
            return False
        try:
            return self._fits(pid)
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            return False
        except PermissionError:
            self.unseen += 1
            return False

    def _fits(self, pid: int) -> bool:
        wanted = self._params
        if wanted["argv"] is not None or self._pattern is not None:
            argv = argument_vector(pid)
            if not argv or (wanted["argv"] is not None and argv != list(wanted["argv"])):
                return False
            if self._pattern is not None and not self._pattern.search(shlex.join(argv)):
                return False
        if wanted["cgroup"] is not None and not any(_below(path, wanted["cgroup"]) for path in cgroups(pid)):
            return False
        if wanted["container"] is not None and not any(
            _of_container(path, wanted["container"]) for path in cgroups(pid)
        ):
            return False
        if wanted["slurm_job"] is not None and not _of_job(pid, wanted["slurm_job"]):
            return False
        return self._device is None or _has_open(pid, self._device)


def _below(path: str, cgroup: str) -> bool:
    return path == cgroup or path.startswith(cgroup.rstrip("/") + "/")


def _of_container(path: str, container: str) -> bool:
    """Engines name a container's cgroup after its id: /docker/ID, docker-ID.scope, cri-containerd-ID.scope..."""
    return any(
        word.startswith(container) and len(word) == 64 for part in path.split("/") for word in re.split(r"[-.:]", part)
    )


def _of_job(pid: int, job: int) -> bool:
    """Slurm names a job's cgroup job_ID; where it keeps none, the job's environment is all that tells."""
    if any(f"job_{job}" in path.split("/") for path in cgroups(pid)):
        return True
    with open(f"/proc/{pid}/environ", "rb") as file:
        return f"SLURM_JOB_ID={job}".encode() in file.read().split(b"\0")


def _has_open(pid: int, device: int) -> bool:
    """Whether it has this device open. Only what lies in /dev is looked at: a remote file may hang who does."""
    for path, link in kernel.descriptors(pid).items():
        try:
            if link.startswith("/dev/") and os.stat(path).st_rdev == device:
                return True
        except FileNotFoundError:
            continue
    return False


def argument_vector(pid: int) -> List[str]:
    """A process's arguments; empty for a kernel thread.

    Raises:
        OSError: it has gone.
    """
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        data = file.read()
    return [os.fsdecode(word) for word in data[: -1 if data.endswith(b"\0") else None].split(b"\0")] if data else []


def cgroups(pid: int) -> List[str]:
    """The cgroups that a process is in, of all hierarchies.

    Raises:
        OSError: it has gone.
    """
    with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        return [line.rstrip("\n").split(":", 2)[2] for line in file]


def _never(pid: int, above: Collection[int]) -> Optional[str]:
    """Why a process is never hit, however well it matches; ``None`` where it may be."""
    if pid in above:
        return "this agent, or what carries it"
    if pid == 1:
        return "it carries everything here"
    if child_of_ours(pid):
        return "started by this agent, such as its guardian"
    try:
        argv = argument_vector(pid)
    except OSError:
        return None
    if any(mark in word for word in argv for mark in _OURS):
        return "an agent or a guardian"
    if any(os.path.basename(word) == "chaos" for word in argv[:2]) or argv[1:3] == ["-m", "chaos"]:
        return "a controller"  # whose node may be one of those that it breaks, reached by SSH like any other
    if argv and os.path.basename(argv[0].rstrip(":")).startswith("slurmstepd"):  # its title is "slurmstepd: [7.0]"
        return "Slurm's own"
    return None


def _listed(processes: List[Dict[str, int]]) -> str:
    shown = []
    for each in processes[:_MOST_SHOWN]:
        try:
            text = shlex.join(argument_vector(each["pid"]))
        except OSError:
            text = "has gone"
        cut = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."
        shown.append(f"{each['pid']} ({cut or 'no arguments'})")
    more = len(processes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def words(target: Dict[str, Any]) -> str:
    """Whose process it is, in words."""
    if target.get("role") is not None:
        return f"the {target['role']}"
    return f"node {target['node']}" if target.get("rank") is None else f"rank {target['rank']}"


def runs(process: Dict[str, int]) -> bool:
    """Whether it is still there and still that process, not merely waiting to be reaped."""
    fields = kernel.stat_fields(process["pid"])
    return fields is not None and int(fields[19]) == process["start"] and fields[0] not in "ZX"


def is_stopped(process: Dict[str, int]) -> bool:
    """Whether it is still that process, and in a stopped state."""
    fields = kernel.stat_fields(process["pid"])
    return fields is not None and int(fields[19]) == process["start"] and fields[0] in "Tt"


def resume(process: Dict[str, int]) -> None:
    """Continue it, if it is still that process."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(process["pid"])
        try:
            if kernel.start_ticks(process["pid"]) == process["start"]:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        finally:
            os.close(pidfd)


def watch_stopped(processes: Sequence[Dict[str, int]], phase: Phase, budget: float, whose: str = "") -> List[Evidence]:
    """Whether each of them is stopped and uses no CPU meanwhile.

    Args:
        whose: said behind each process.
    """
    first = [kernel.stat_fields(each["pid"]) for each in processes]
    time.sleep(min(CPU_SAMPLE, budget / 2))
    seen = []
    for wanted, before in zip(processes, first):
        now = kernel.stat_fields(wanted["pid"])
        called = f"process {wanted['pid']}{whose}"
        if before is None or now is None or int(now[19]) != wanted["start"]:
            seen.append(Evidence(False if phase == "after" else None, f"{called} has gone", {"alive": False}))
            continue
        ticks = sum(int(now[k]) - int(before[k]) for k in (11, 12))  # utime and stime
        text = f"{called} is in state {now[0]} and used {ticks} ticks of CPU meanwhile"
        seen.append(Evidence(now[0] in "Tt" and ticks == 0, text, {"state": now[0], "cpu_ticks": ticks}))
    return seen


def all_effective(seen: Sequence[Evidence]) -> Optional[bool]:
    """Whether a fault is in effect on each of several; ``None`` where it is on none certain not to be."""
    if all(each.effective for each in seen):
        return True
    return False if any(each.effective is False for each in seen) else None


def signal_problem(name: str, duration: Optional[float]) -> Optional[str]:
    """What is wrong with a signal and a `for:`; ``None`` where they fit."""
    if name == "STOP" and duration is None:
        return "a STOP needs `for:`, the time after which the process is continued"
    if name != "STOP" and duration is not None:
        return f"a {name} is over at once: `for:` belongs to STOP alone"
    return None


def namespace() -> int:
    """The inode of our PID namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def ancestors() -> List[int]:
    """This process and all those above it, such as the sshd that carries it: none of them may be hit."""
    found, pid = [], os.getpid()
    while pid > 0:
        found.append(pid)
        fields = kernel.stat_fields(pid)
        pid = int(fields[1]) if fields else 0
    return found


def child_of_ours(pid: int) -> bool:
    """Whether this process has started it, or one of those above it."""
    while pid > 0:
        fields = kernel.stat_fields(pid)
        pid = int(fields[1]) if fields else 0
        if pid == os.getpid():
            return True
    return False


def descendants(pid: int) -> List[int]:
    """What a process has started, and what that has, as far as it still lives below it."""
    found: List[int] = []
    waiting = [pid]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(pid: int) -> List[int]:
    children: List[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                children += [int(word) for word in file.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return children

"""Faults of processes that get less than they need: of CPU, memory, input and output, or nothing at all.

The processes are moved into control groups of our own (``_cgroup``): beforehand, while these limit nothing yet, so that
the fault itself is one value that is written. Each process that is meant has a group of its own, with all its threads,
what it has started and what it starts meanwhile.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Dict, List, Literal, Mapping, Optional, Tuple, Type

from injectors import _cgroup, _processes, kernel
from injectors._cgroup import Group, Hierarchy
from injectors.contract import (
    BitsPerSecond,
    Bytes,
    Evidence,
    Ground,
    InjectorError,
    Order,
    Phase,
    Ratio,
    Reality,
    Stray,
    Support,
    Target,
    TargetKey,
    UndoRecord,
)

_PERIOD, _LEAST_QUOTA, _LONGEST_PERIOD = 10_000, 1_000, 1_000_000  # microseconds; the kernel takes no less, no more
_LEAST_CPU = _LEAST_QUOTA / _LONGEST_PERIOD
_LOOK_BEFORE, _LOOK = 0.05, 0.5  # seconds for which a process is watched, at the most
_NEAR = 1.3  # a limit holds if no more than so much of it is used; a period that has begun may still have credit
_REACHED = 0.5  # input and output were slowed if at least so much of what is allowed was used
_PAUSE = 0.002  # seconds between two looks for a process that is to be killed, or frozen
_NEVER_KILLED = -1000  # oom_score_adj
_CPU_CLOCK = 2  # of a whole process, scheduled time (CPUCLOCK_SCHED of the kernel's posix-timers)

Limits = List[List[str]]
Needs = Dict[str, Callable[[Hierarchy], Tuple[Limits, Optional[str]]]]  # by controller: its limits and file of usage


@dataclass(frozen=True)
class _Amounts:
    cpu: Optional[Ratio] = field(
        default=None, metadata={"help": "how much CPU time all its threads get together: 25% of one CPU, 250% of many"}
    )
    memory: Optional[Bytes] = field(
        default=None,
        metadata={
            "help": "how much memory it can have beyond what it has when the fault begins; a process that needs more, "
            "and has nothing that the kernel can take back, is killed"
        },
    )
    memory_high: Optional[Bytes] = field(
        default=None,
        metadata={
            "help": "the same, but a process that needs more is slowed (cgroup v2) or waits until the end (v1), "
            "and is not killed"
        },
    )
    read: Optional[BitsPerSecond] = field(
        default=None, metadata={"help": "how fast it reads from disks, such as 10MB/s (what is cached is free)"}
    )
    write: Optional[BitsPerSecond] = field(
        default=None, metadata={"help": "how fast it writes to disks (v1: with O_DIRECT or O_SYNC; v2: all of it)"}
    )
    disk: Optional[str] = field(default=None, metadata={"help": "the disk, such as /dev/sda; by default all of them"})
    freeze: Optional[bool] = field(
        default=None, metadata={"help": "``true``: it does not run at all, as if its machine stood still"}
    )


@dataclass(frozen=True)
class LimitParams(_processes.Matching, _Amounts):
    """Parameters of ``process.limit``: how much is left and, on a node, to which of its processes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        amounts = {key: getattr(self, key) for key in ("cpu", "memory", "memory_high", "read", "write")}
        given = [key for key, value in amounts.items() if value is not None]
        if not given and not self.freeze:
            raise ValueError("found no limit; write one of " + ", ".join(amounts) + " or freeze: true")
        if given and self.freeze:
            raise ValueError(f"found {given[0]} beside freeze: a frozen process uses nothing; leave one of them out")
        if self.cpu is not None and self.cpu < _LEAST_CPU:
            raise ValueError(f"found cpu {100 * self.cpu:g}%; write {100 * _LEAST_CPU:g}% or more, or freeze: true")
        for key in ("read", "write"):
            if amounts[key] is not None and amounts[key] < 8:
                raise ValueError(f"found {key} below 1B/s; write a rate above that")
        if self.disk is not None and self.read is None and self.write is None:
            raise ValueError("found a disk without read or write; write how fast it may be used")


@dataclass(frozen=True)
class _Headroom:
    headroom: Bytes = field(
        default=0, metadata={"help": "how much memory the process can still have before it is killed"}
    )


@dataclass(frozen=True)
class OomParams(_processes.Matching, _Headroom):
    """Parameters of ``process.oom``: which processes of a node are meant."""


class _InGroups(ABC):
    """What faults that move processes into cgroups have in common."""

    kind: ClassVar[str]
    about: ClassVar[str]
    mechanism: ClassVar[str]
    undoing: ClassVar[str]
    proof: ClassVar[str] = (
        "None of the fault's cgroups is there any more, so nobody can be in one; processes are in the cgroups "
        "from which they came."
    )
    witnessed: ClassVar[str]
    where: ClassVar[Mapping[Ground, Reality]] = {"lab": "real", "node": "real"}
    danger: ClassVar[Optional[str]] = None
    example: ClassVar[Mapping[str, str]]
    reversal: ClassVar[Literal["exact", "self", "none"]]
    targets: ClassVar[Tuple[TargetKey, ...]] = ("rank", "process", "node")
    duration: ClassVar[Literal["required", "optional", "none"]]
    runs_on: ClassVar[Literal["node", "controller"]] = "node"
    Params: ClassVar[Type[Any]]
    _with_children: ClassVar[bool]
    _at_fire: ClassVar[bool]

    def __init__(self) -> None:
        self._resolver = _processes.Resolver(self.kind)
        self._before: Dict[int, float] = {}  # share of a CPU that each process used

    @abstractmethod
    def _needs(self, params: Any) -> Needs:
        """What must be limited, by controller."""

    @abstractmethod
    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """As the contract says."""

    def support(self, params: Any, target: Target) -> Support:
        """Possible where the controllers that it takes are mounted, and this user may make cgroups."""
        missing: List[str] = []
        for controller in self._needs(params):
            there = _cgroup.hierarchy(controller)
            if there is None:
                missing.append(
                    f"the cgroup controller {controller}: mount it (version 1), or have the root of version 2 hand it "
                    f"on: echo +{controller} > /sys/fs/cgroup/cgroup.subtree_control"
                )
            elif not os.access(there.mount, os.W_OK):
                missing.append(f"the right to make cgroups in {there.mount}: run the agent as root of the node")
        return Support("real", tuple(missing))

    def plan(self, order: Order) -> UndoRecord:
        """Find the processes, their cgroups, and how ours will be called; make nothing."""
        self.support(order.params, order.target).require(self.kind)
        found = self._resolver.find(order)
        groups: List[Group] = []
        for number, target in enumerate(found.processes):
            self._check(target)
            groups += self._groups(order, number, target, found.processes)
        rests = {each.home: each for each in groups if each.enabled and not _is_root(each.home)}
        groups += [
            Group(os.path.join(home, f"{_cgroup.name(order.fault)}-rest"), 2, order.fault, enabled=each.enabled)
            for home, each in rests.items()
        ]
        before = {
            "processes": list(found.processes),
            "asked": found.asked,
            "left_out": list(found.left_out),
            "groups": [each.as_dict() for each in groups],
        }
        return UndoRecord.of(self, order, before)

    @abstractmethod
    def _check(self, target: Dict[str, int]) -> None:
        """Raise ``InjectorError`` for a process with which the fault would mean nothing."""

    def _groups(
        self, order: Order, number: int, target: Dict[str, int], targets: Tuple[Dict[str, int], ...]
    ) -> List[Group]:
        """One process's groups: one in each hierarchy that is needed."""
        needs = self._needs(order.params)
        by_mount: Dict[str, Tuple[Hierarchy, List[str]]] = {}
        for controller in needs:
            there = _cgroup.hierarchy(controller)
            assert there is not None, "support has looked"
            by_mount.setdefault(there.mount, (there, []))[1].append(controller)
        groups = []
        for there, controllers in by_mount.values():
            home = there.home(target["pid"])
            if any(_cgroup.marked(part) for part in home.split("/")):
                raise InjectorError(
                    f"process {target['pid']} is in {home}, the cgroup of another fault: wait for its end, or "
                    "`chaos sweep` removes what is left of it"
                )
            group = Group(
                path=os.path.join(home, f"{_cgroup.name(order.fault)}-{number}"),
                version=there.version,
                fault=order.fault,
                at_fire=self._at_fire,
                target={key: target[key] for key in ("pid", "start")},
                homes=_cgroup.homes(there, self._family(target, targets)),
            )
            for controller in controllers:
                limits, usage = needs[controller](there)
                group.limits += limits
                group.usage = usage or group.usage
            if there.version == 2:
                group.enabled = _to_enable(home, [each for each in controllers if each != "freezer"])
            groups.append(group)
        return groups

    def _family(self, target: Dict[str, int], targets: Any) -> List[int]:
        """A process and, where they go along, those that it has started: each with the nearest that is meant."""
        if not self._with_children:
            return [target["pid"]] if _processes.runs(target) else []
        others = {each["pid"] for each in targets} - {target["pid"]}
        below = _processes.descendants(target["pid"])
        apart = {pid for other in others & set(below) for pid in (other, *_processes.descendants(other))}
        family = [target["pid"], *(pid for pid in below if pid not in apart)]
        states = ((pid, kernel.stat_fields(pid)) for pid in family)
        return [pid for pid, fields in states if fields is not None and fields[0] not in "ZX"]

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The processes' places among the cgroups, and the fault's own mark.

        In version 2 also their home: it is rearranged for all that are in it.
        """
        processes = self._resolver.names(order)
        homes = set()
        v2 = [each for each in map(_cgroup.hierarchy, self._needs(order.params)) if each and each.version == 2]
        for name in processes if v2 else ():
            home = v2[0].home(int(name.split(":")[1]))
            homes.add("/".join(part for part in home.split("/") if not _cgroup.marked(part)))
        names = [*processes, *sorted(homes), _cgroup.name(order.fault)]
        return tuple(f"cgroup:{each}" for each in names)

    def prepare(self, record: UndoRecord) -> None:
        """Make the groups, try the limits on them while nobody is in them, and move the processes in."""
        groups = _groups_of(record)
        for each in groups:
            each.create()
        for each in groups:
            if each.target is None:
                each.join(lambda home=each.home: _cgroup.members(home))  # type: ignore[misc]
        for each in groups:
            each.enable()
        for each in groups:
            if each.target is not None:
                each.tighten()
                if not each.at_fire:
                    each.loosen()
                    self._join(each, record)

    def _join(self, group: Group, record: UndoRecord) -> None:
        processes = record.before["processes"]
        target = next(each for each in processes if each["pid"] == (group.target or {})["pid"])
        if not _processes.runs(target):
            if len(processes) == 1:
                raise InjectorError(f"the process {target['pid']} has gone")
            return
        group.join(lambda: self._family(target, processes))

    def inject(self, record: UndoRecord) -> int:
        """Write the limits, or move the processes under those that are there."""
        for each in _groups_of(record):
            if each.target is None:
                continue
            if each.at_fire:
                self._join(each, record)
            else:
                each.tighten()
        return time.monotonic_ns()

    def undo(self, record: UndoRecord) -> int:
        """Take the limits away, which ends the effect; then everybody goes home, and the groups are removed."""
        groups = [each for each in _groups_of(record) if each.there]
        problems: List[str] = []
        ended = 0
        for step in (Group.loosen, Group.disable, Group.dissolve):
            for each in groups:
                try:
                    step(each)
                except InjectorError as error:  # the others are still undone
                    problems.append(str(error))
            ended = ended or time.monotonic_ns()  # without their limits
        if problems:
            raise InjectorError("; ".join(problems))
        return ended

    def residue(self, record: UndoRecord) -> List[str]:
        """Each of the groups that is still there."""
        return [f"the cgroup {each.path} is still there, {_inside(each)}" for each in _groups_of(record) if each.there]

    def strays(self, target: Target) -> List[Stray]:
        """Groups that bear our mark, of this PID namespace or of one that has gone."""
        found = []
        for path in _cgroup.found():
            group = Group.at(path)
            whose = f" of fault {group.fault}" if group.fault else ""
            text = f"the cgroup {path}{whose}, {_inside(group)}"
            found.append(Stray(f"cgroup:{_cgroup.marked(path)}", text, {"path": path}))
        return found

    def clear(self, stray: Stray) -> None:
        """Move everybody into the cgroup above, where they were, and remove the group."""
        group = Group.at(stray.where["path"])
        if group.there:
            group.loosen()
            group.disable()
            group.dissolve()

    def _none(self, record: UndoRecord) -> Evidence:
        asked = record.before["asked"]
        return Evidence(False, f"no process was there to limit: nothing matched {asked}", {"processes": 0})

    def _after(self, record: UndoRecord, budget: float) -> Evidence:
        """Whether the groups have gone, and where the processes are now."""
        left = [each.path for each in _groups_of(record) if each.there]
        processes = record.before["processes"]
        shares = _shares([[each["pid"]] for each in processes], min(_LOOK_BEFORE, budget / 2))
        texts: List[str] = []
        numbers: Dict[str, Any] = {}
        for process, share in zip(processes, shares):
            if not _processes.runs(process):
                texts.append(f"process {process['pid']} has gone")
                numbers[str(process["pid"])] = {"alive": False}
                continue
            texts.append(f"process {process['pid']} uses {_percent(share)} of a CPU")
            numbers[str(process["pid"])] = {"alive": True, "cpu": share}
        texts += _elsewhere(record) or ["all are back in their cgroups"]
        if left:
            texts.append("still there: " + ", ".join(left))
        return Evidence(bool(left), "; ".join(texts), {"processes": numbers, "cgroups": left})


class Limit(_InGroups):
    """``process.limit``: processes get less CPU, memory, input and output, or do not run at all, for a while."""

    kind: ClassVar[str] = "process.limit"
    about: ClassVar[str] = (
        "The process of a rank, the launcher, or processes of a node get only so much CPU time, memory or disk "
        "bandwidth, or are frozen."
    )
    mechanism: ClassVar[str] = (
        "The process, its threads and what it has started are moved beforehand into a cgroup of the fault's own, below "
        "the one in which they are; the limit is then one value that is written."
    )
    undoing: ClassVar[str] = (
        "The limit is taken away, all that are in the cgroup go back to where they came from, those forked meanwhile "
        "to where their parents were, and the cgroup is removed. Who was killed for want of memory stays dead."
    )
    witnessed: ClassVar[str] = (
        "What the processes use is measured: CPU time, memory, bytes from and to disks, and what the cgroup says of "
        "itself (throttled, over its limit, frozen). Before, they use more than is left to them."
    )
    example: ClassVar[Mapping[str, str]] = {"on": "{rank: 1}", "with": "{cpu: 10%}", "for": "2s"}
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"
    Params: ClassVar[Type[Any]] = LimitParams
    _with_children: ClassVar[bool] = True
    _at_fire: ClassVar[bool] = False

    def _check(self, target: Dict[str, int]) -> None:
        """Whatever runs can be limited."""

    def _needs(self, params: LimitParams) -> Needs:
        needs: Needs = {}
        if params.cpu is not None:
            needs["cpu"] = lambda there: (_cpu(there, params.cpu or 0.0), None)
        if params.memory is not None or params.memory_high is not None:
            needs["memory"] = lambda there: _memory(there, params)
        if params.read is not None or params.write is not None:
            needs["blkio" if _cgroup.hierarchy("blkio") else "io"] = lambda there: (_io(there, params), None)
        if params.freeze:
            needs["freezer"] = lambda there: (_freezer(there), None)
        return needs

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Watch the processes: what they use, and how often the kernel held them back."""
        processes = record.before["processes"]
        if not processes:
            return self._none(record)
        if phase == "after":
            return self._after(record, budget)
        if phase == "before":
            shares = _shares([[each["pid"]] for each in processes], min(_LOOK_BEFORE, budget / 2))
            self._before = {each["pid"]: share for each, share in zip(processes, shares)}
            text = "; ".join(f"process {pid} uses {_percent(share)} of a CPU" for pid, share in self._before.items())
            return Evidence(False, text, {"cpu": {str(pid): share for pid, share in self._before.items()}})
        seen = self._during(record, min(_LOOK, budget * 0.8))
        numbers = {str(process["pid"]): each.numbers for process, each in zip(processes, seen)}
        return Evidence(_processes.all_effective(seen), "; ".join(each.text for each in seen), {"processes": numbers})

    def _during(self, record: UndoRecord, seconds: float) -> List[Evidence]:
        """What is seen of each process within that time."""
        groups = _groups_of(record)
        mine = [
            [each for each in groups if each.target is not None and each.target["pid"] == process["pid"]]
            for process in record.before["processes"]
        ]
        members = [each[0].members() for each in mine]
        started = time.monotonic()
        if record.params["freeze"]:  # what runs in the kernel stops at its end
            while not all(map(_is_frozen, [group for its in mine for group in its])):
                if time.monotonic() - started > seconds / 2:
                    break
                time.sleep(_PAUSE)
            started, seconds = time.monotonic(), seconds / 2
        reads = [_io_bytes(each) for each in mine]
        shares = _shares(members, seconds)
        elapsed = time.monotonic() - started
        seen = []
        for process, its, share, first in zip(record.before["processes"], mine, shares, reads):
            rates = tuple((now - then) / elapsed for now, then in zip(_io_bytes(its), first))
            seen.append(self._judge(record, process, its, share, rates))
        return seen

    def _judge(
        self, record: UndoRecord, process: Dict[str, int], groups: List[Group], share: float, rates: Tuple[float, ...]
    ) -> Evidence:
        params, pid = record.params, process["pid"]
        said: List[str] = []
        numbers: Dict[str, Any] = {"cpu": share, "alive": _processes.runs(process)}
        holds = []
        if params["cpu"] is not None:
            stat = _sum(groups, "cpu.stat")
            held_back = stat.get("nr_throttled", 0)
            holds.append(held_back > 0 and share <= _NEAR * params["cpu"] + 0.01)
            before = f", before {_percent(self._before[pid])}" if pid in self._before else ""
            said.append(
                f"used {_percent(share)} of a CPU ({_percent(params['cpu'])} allowed{before}) and was held back in "
                f"{held_back} of {stat.get('nr_periods', 0)} periods"
            )
            numbers |= {"asked_cpu": params["cpu"], "throttled": held_back, "periods": stat.get("nr_periods", 0)}
        if params["memory"] is not None or params["memory_high"] is not None:
            memory = _memory_figures(groups)
            holds.append(memory["hits"] > 0)
            said.append(
                f"reached the limit of memory {memory['hits']} times, {memory['waiting']} of its cgroups wait for "
                f"memory, {memory['killed']} processes were killed; {_bytes(memory['used'])} are in its cgroup"
            )
            numbers |= {"memory": memory}
        for key, rate in zip(("read", "write"), rates):
            if params[key] is not None:
                asked = params[key] / 8
                holds.append(_REACHED * asked <= rate <= _NEAR * asked)
                said.append(f"{key} {_bytes(rate)}/s ({_bytes(asked)}/s allowed)")
                numbers |= {f"{key}_bytes_per_second": rate}
        if params["freeze"]:
            frozen = any(_is_frozen(each) for each in groups)
            holds.append(frozen and share == 0)
            said.append(f"is {'frozen' if frozen else 'not frozen'} and used {_percent(share)} of a CPU")
            numbers |= {"frozen": frozen}
        gone = "" if numbers["alive"] else " (it has gone)"
        if gone and "memory" not in numbers:  # what is no more uses nothing: that is no effect of the limit
            holds.append(False)
        return Evidence(all(holds), f"process {pid}{gone} " + ", ".join(said), numbers)


class Oom(_InGroups):
    """``process.oom``: the kernel's OOM killer kills a process that runs out of memory."""

    kind: ClassVar[str] = "process.oom"
    about: ClassVar[str] = "The kernel's OOM killer kills the process of a rank, the launcher, or processes of a node."
    mechanism: ClassVar[str] = (
        "The process is moved into a cgroup of the fault's own that allows no memory: what it holds stays with its "
        "former cgroup, and the next page that it needs makes the OOM killer choose it, the only one there."
    )
    undoing: ClassVar[str] = "Who was killed stays dead; the cgroup is removed, and who was not killed goes back."
    witnessed: ClassVar[str] = "The process has ended, and its cgroup counts a kill by the OOM killer."
    danger: ClassVar[Optional[str]] = "the processes are killed, with whatever they have not written down"
    example: ClassVar[Mapping[str, str]] = {"on": "{rank: 1}"}
    reversal: ClassVar[Literal["exact", "self", "none"]] = "none"
    duration: ClassVar[Literal["required", "optional", "none"]] = "none"
    Params: ClassVar[Type[Any]] = OomParams
    _with_children: ClassVar[bool] = False
    _at_fire: ClassVar[bool] = True  # so that it counts from nothing what the process needs

    def _needs(self, params: OomParams) -> Needs:
        def limits(there: Hierarchy) -> Tuple[Limits, Optional[str]]:
            allowed = str(params.headroom)
            if there.version == 2:
                swap = [["memory.swap.max", "0"]] if os.path.exists("/proc/swaps") and _swaps() else []
                return [["memory.max", allowed], *swap], None
            both = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]  # in this order: the second holds the first
            there_too = [each for each in both if os.path.exists(os.path.join(there.mount, each))]
            return [[each, allowed] for each in there_too], None

        return {"memory": limits}

    def _check(self, target: Dict[str, int]) -> None:
        if _cgroup.figure(f"/proc/{target['pid']}/oom_score_adj") == _NEVER_KILLED:
            raise InjectorError(
                f"process {target['pid']} has an oom_score_adj of {_NEVER_KILLED}: the OOM killer never takes it; "
                "process.signal with KILL does"
            )

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Wait for the kill: the process has gone, and the kernel has counted a kill in its cgroup."""
        processes = record.before["processes"]
        if not processes:
            return self._none(record)
        if phase == "after":
            return self._after(record, budget)
        if phase == "before":
            alive = [each["pid"] for each in processes if _processes.runs(each)]
            return Evidence(False, f"running: {', '.join(map(str, alive))}", {"alive": alive})
        started = time.monotonic()
        while any(map(_processes.runs, processes)) and time.monotonic() - started < budget:
            time.sleep(_PAUSE)
        waited = (time.monotonic() - started) * 1000
        killed: List[bool] = []
        texts: List[str] = []
        numbers: Dict[str, Any] = {}
        for process in processes:
            groups = [each for each in _groups_of(record) if (each.target or {}).get("pid") == process["pid"]]
            memory, runs = _memory_figures(groups), _processes.runs(process)
            killed.append(not runs and memory["killed"] > 0)
            texts.append(
                f"process {process['pid']} {'still runs' if runs else 'has ended'} after {waited:.0f} ms: "
                f"the OOM killer took {memory['killed']} in its cgroup"
            )
            numbers[str(process["pid"])] = {"alive": runs, **memory}
        return Evidence(all(killed), "; ".join(texts), {"processes": numbers})


# -- limits as the kernel takes them ----------------------------------------------------------------------------------


def _cpu(there: Hierarchy, share: float) -> Limits:
    period = min(_LONGEST_PERIOD, max(_PERIOD, round(_LEAST_QUOTA / share)))
    quota = max(_LEAST_QUOTA, round(period * share))
    if there.version == 2:
        return [["cpu.max", f"{quota} {period}"]]
    return [["cpu.cfs_period_us", str(period)], ["cpu.cfs_quota_us", str(quota)]]


def _memory(there: Hierarchy, params: LimitParams) -> Tuple[Limits, str]:
    hard, high = params.memory, params.memory_high
    if there.version == 2:
        limits = [("memory.max", hard), ("memory.high", high)]
        return [[name, f"+{value}"] for name, value in limits if value is not None], "memory.current"
    if hard is not None and high is not None:
        raise InjectorError("memory and memory_high together need version 2 of cgroups: leave one of them out")
    value = high if hard is None else hard
    waits = [["memory.oom_control", "1"]] if hard is None else []
    return [*waits, ["memory.limit_in_bytes", f"+{value}"]], "memory.usage_in_bytes"


def _io(there: Hierarchy, params: LimitParams) -> Limits:
    rates = [(key, round(rate / 8)) for key, rate in (("read", params.read), ("write", params.write)) if rate]
    limits = []
    for disk in _disks(params.disk):
        if there.version == 2:
            limits.append(["io.max", disk + "".join(f" {key[0]}bps={rate}" for key, rate in rates)])
        else:
            limits += [[f"blkio.throttle.{key}_bps_device", f"{disk} {rate}"] for key, rate in rates]
    return limits


def _freezer(there: Hierarchy) -> Limits:
    return [["cgroup.freeze", "1"]] if there.version == 2 else [["freezer.state", "FROZEN"]]


def _disks(name: Optional[str]) -> List[str]:
    """Disks by their numbers (8:0): one by its name, or all that are no mere view of others.

    Raises:
        InjectorError: there is none.
    """
    if name is not None:
        try:
            number = os.stat(name).st_rdev
        except OSError as error:
            raise InjectorError(f"no disk {name} on this node: {error.strerror}") from error
        folder = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"
        if not os.path.isdir(folder):
            raise InjectorError(f"{name} is no disk")
        if os.path.exists(f"{folder}/partition"):  # a partition is limited with the whole of its disk
            folder = os.path.dirname(os.path.realpath(folder))
        folders = [folder]
    else:
        found = [os.path.realpath(f"/sys/block/{entry}") for entry in sorted(os.listdir("/sys/block"))]
        folders = [folder for folder in found if "/devices/virtual/" not in folder]
    if not folders:
        raise InjectorError("this node has no disks whose input and output could be limited")
    numbers = []
    for folder in folders:
        with open(f"{folder}/dev", encoding="ascii") as file:
            numbers.append(file.read().strip())
    return numbers


def _to_enable(home: str, controllers: List[str]) -> List[str]:
    """Version 2: what a home must hand on, and does not.

    Raises:
        InjectorError: it does not have it itself.
    """
    has = set(_cgroup.read_words(os.path.join(home, "cgroup.controllers")))
    hands_on = set(_cgroup.read_words(os.path.join(home, "cgroup.subtree_control")))
    lacking = [each for each in controllers if each not in has]
    missing = [each for each in controllers if each not in hands_on]
    if lacking or (missing and _is_root(home)):
        above = home if _is_root(home) else os.path.dirname(home)
        wanted = " ".join(f"+{each}" for each in lacking or missing)
        raise InjectorError(
            f"the cgroup {home} has no {' and no '.join(lacking or missing)} to hand on: echo '{wanted}' > "
            f"{above}/cgroup.subtree_control, and the same in each cgroup above that lacks it"
        )
    return missing


def _is_root(home: str) -> bool:
    """Version 2: whether it is the root, which alone may hold processes and hand controllers on."""
    return not os.path.exists(os.path.join(home, "cgroup.type"))


def _swaps() -> bool:
    with open("/proc/swaps", encoding="utf-8") as file:
        return len(file.readlines()) > 1


# -- what is measured -------------------------------------------------------------------------------------------------


def _groups_of(record: UndoRecord) -> List[Group]:
    return [Group(**each) for each in record.before["groups"]]


def _shares(families: List[List[int]], seconds: float) -> List[float]:
    """How much of a CPU each of these sets of processes uses, watched for so long."""
    first, started = [_cpu_times(pids) for pids in families], time.monotonic()
    time.sleep(seconds)
    second, elapsed = [_cpu_times(pids) for pids in families], time.monotonic() - started
    return [
        sum(now[pid] - before[pid] for pid in now.keys() & before.keys()) / elapsed
        for now, before in zip(second, first)
    ]


def _cpu_times(pids: List[int]) -> Dict[int, float]:
    """CPU time of processes, in seconds, all their threads; without those that have gone."""
    times = {}
    for pid in pids:
        try:
            times[pid] = time.clock_gettime((~pid << 3) | _CPU_CLOCK)
        except OSError:
            continue
    return times


def _sum(groups: List[Group], name: str) -> Dict[str, int]:
    total: Dict[str, int] = {}
    for group in groups:
        for key, value in _cgroup.figures(os.path.join(group.path, name)).items():
            total[key] = total.get(key, 0) + value
    return total


def _memory_figures(groups: List[Group]) -> Dict[str, int]:
    """How often memory was refused, who waits, who was killed, and how many bytes are used, of these groups."""
    figures = {"hits": 0, "waiting": 0, "killed": 0, "used": 0}
    for group in groups:
        at = group.path
        if group.version == 2:
            events = _cgroup.figures(os.path.join(at, "memory.events"))
            figures["hits"] += events.get("high", 0) + events.get("max", 0)
            figures["killed"] += events.get("oom_kill", 0)
            figures["used"] += _cgroup.figure(os.path.join(at, "memory.current"))
        else:
            control = _cgroup.figures(os.path.join(at, "memory.oom_control"))
            figures["hits"] += _cgroup.figure(os.path.join(at, "memory.failcnt"))
            figures["waiting"] += control.get("under_oom", 0)
            figures["killed"] += control.get("oom_kill", 0)
            figures["used"] += _cgroup.figure(os.path.join(at, "memory.usage_in_bytes"))
    return figures


def _io_bytes(groups: List[Group]) -> Tuple[int, int]:
    """Bytes read and written by these groups."""
    read = written = 0
    for group in groups:
        for name in ("blkio.throttle.io_service_bytes", "io.stat"):
            words = _cgroup.read_words(os.path.join(group.path, name))
            read += sum(int(words[place + 1]) for place, word in enumerate(words) if word == "Read")
            written += sum(int(words[place + 1]) for place, word in enumerate(words) if word == "Write")
            read += sum(int(word[7:]) for word in words if word.startswith("rbytes="))
            written += sum(int(word[7:]) for word in words if word.startswith("wbytes="))
    return read, written


def _is_frozen(group: Group) -> bool:
    if group.version == 2:
        return _cgroup.figures(os.path.join(group.path, "cgroup.events")).get("frozen") == 1
    return _cgroup.read_words(os.path.join(group.path, "freezer.state")) == ["FROZEN"]


def _elsewhere(record: UndoRecord) -> List[str]:
    """Processes that are not in the cgroup from which they came, in words."""
    told = []
    for group in _groups_of(record):
        there = next((each for each in _cgroup.hierarchies() if (group.path + "/").startswith(each.mount + "/")), None)
        if there is None:
            continue
        for known in group.homes:
            if known["thread"] is not None or kernel.start_ticks(known["pid"]) != known["start"]:
                continue
            try:
                now = there.home(known["pid"])
            except InjectorError:  # it has ended just now
                continue
            if now != known["home"]:
                why = "" if os.path.isdir(known["home"]) else ", which has gone"
                told.append(f"process {known['pid']} is in {now} instead of {known['home']}{why}")
    return told


def _inside(group: Group) -> str:
    members = group.members()
    return f"with {', '.join(f'process {pid}' for pid in members)} in it" if members else "with nobody in it"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _bytes(number: float) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.0f} B"

"""The contract between an injector and whoever runs it (the agent on a node).

The life of a fault, in order: ``support`` (can this node do it), its ``devices`` are locked, ``plan`` (read, change
nothing), the record is put on stable storage and a guardian watches it, ``prepare`` (everything slow, nothing that
disturbs), ``witness`` before, ``inject`` (the change alone), ``witness`` during, ``undo`` at the end, ``witness``
after, ``residue`` (nothing may be left), and only then is the record removed. A process that finds a record and nobody
holding it undoes the fault from the record alone; where even the record is lost, ``strays`` finds what bears our mark.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Dict, List, Literal, Mapping, Optional, Protocol, Sequence, Tuple, Type

# What a parameter means is part of its type; documents carry units ("500ms"), injectors receive SI numbers.
Seconds = Annotated[float, "duration"]
Ratio = Annotated[float, "ratio"]
BitsPerSecond = Annotated[float, "rate"]
Bytes = Annotated[int, "size"]
GPU = Annotated[str, "gpu"]  # a GPU of the fault's node, as documents name it: gpu0

Reality = Literal["real", "emulated", "telemetry"]
Ground = Literal["lab", "node"]  # an emulated cluster, a machine
Phase = Literal["before", "during", "after"]
TargetKey = Literal["node", "gpu", "rank", "process"]  # keys of a document's `on:`

RECORD_VERSION = 2  # 1 had neither devices nor the agent's version


class InjectorError(Exception):
    """An injector cannot do what was asked; the message says what was found and what would be right."""


class StillHeld(InjectorError):
    """What is to be undone belongs to a process that still lives, and goes when that is killed.

    Args:
        message: what is held, and by whom.
        holders: process ids, as far as they can be seen from here.
    """

    def __init__(self, message: str, holders: Sequence[int]) -> None:
        super().__init__(message)
        self.holders = tuple(holders)


@dataclass(frozen=True)
class Support:
    """Whether a node can have this fault.

    Attributes:
        reality: ``real`` (hardware or kernel), ``emulated`` (stands in for hardware), ``telemetry`` (monitors only).
        missing: what is missing, each with its remedy; empty where the fault is possible.
    """

    reality: Reality
    missing: Tuple[str, ...] = ()

    @property
    def possible(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    def require(self, kind: str) -> None:
        """Raise InjectorError if this kind of fault is not possible."""
        if self.missing:
            raise InjectorError(f"{kind} is not possible here; missing: " + "; ".join(self.missing))


@dataclass(frozen=True)
class Target:
    """On what the fault is made, resolved on the node that has it.

    Attributes:
        node: the node's number, ``None`` on a machine that is no lab's node.
        gpu: the number of the GPU of that node, where the fault is on one.
        rank: the training job's rank that is meant, where the fault is on a rank's process.
        role: the process of the job that is meant, where the fault is on one that is no rank's: ``launcher``.
        process: that process: ``pid`` (as its node sees it), ``start`` (ticks since boot, field 22 of
            /proc/PID/stat) and ``pidns`` (inode of its PID namespace).
        namespaces: paths of network namespaces on this node by device: ``gpu0``, ``nvswitch``...
        lab: folder of the lab's keeper, for faults on whole nodes.
    """

    node: Optional[int] = None
    gpu: Optional[int] = None
    rank: Optional[int] = None
    role: Optional[str] = None
    process: Optional[Dict[str, int]] = None
    namespaces: Dict[str, str] = field(default_factory=dict)
    lab: Optional[str] = None


@dataclass(frozen=True)
class Order:
    """One fault as it is asked for.

    Attributes:
        fault: the fault's id, unique in the world; it marks every kernel object that is made for it.
        params: an instance of the injector's ``Params``.
        target: on what.
        duration: seconds from the effect to the end; ``None`` where the injector has no end to make.
    """

    fault: str
    params: Any
    target: Target
    duration: Optional[float]


@dataclass
class UndoRecord:
    """All that another process needs to undo a fault and to prove it: plain JSON.

    Attributes:
        fault: the fault's id.
        implementation: ``module:Class`` of the injector.
        before: the former state, and whatever else undo, witness and residue need.
        deadline_ns: CLOCK_MONOTONIC of this boot after which anybody may undo.
        boot: boot id of the node; a namespace or a process does not outlive it.
        owner: the run that asked for the fault.
        devices: what is locked on the node as long as the record is there: see ``Injector.devices``.
        agent: version of the agent that wrote it.
    """

    fault: str
    kind: str
    implementation: str
    params: Dict[str, Any]
    target: Dict[str, Any]
    duration: Optional[float]
    before: Dict[str, Any] = field(default_factory=dict)
    deadline_ns: Optional[int] = None
    boot: str = ""
    owner: str = ""
    devices: List[str] = field(default_factory=list)
    agent: str = ""
    version: int = RECORD_VERSION

    @classmethod
    def of(cls, injector: Injector, order: Order, before: Dict[str, Any]) -> UndoRecord:
        """The record of an order, with the former state that ``plan`` has read."""
        made_by = type(injector)
        return cls(
            fault=order.fault,
            kind=injector.kind,
            implementation=f"{made_by.__module__}:{made_by.__qualname__}",
            params=asdict(order.params),
            target=asdict(order.target),
            duration=order.duration,
            before=before,
            devices=list(injector.devices(order)),
        )

    def as_dict(self) -> Dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Dict[str, Any]) -> UndoRecord:
        """Read one back, also one that an older version wrote.

        Raises:
            InjectorError: it was written by a newer version, or is no record.
        """
        version = data.get("version")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise InjectorError("this is no undo record: it has no version")
        if version > RECORD_VERSION:
            writer = data.get("agent") or "of an unknown version"
            raise InjectorError(
                f"the undo record has version {version} (written by agent {writer}), this program reads up to "
                f"{RECORD_VERSION}: undo it with that agent's version or a newer one"
            )
        try:
            return cls(**data)
        except TypeError as error:
            raise InjectorError(f"this is no undo record: {error}") from error


@dataclass(frozen=True)
class Evidence:
    """What a witness measured.

    Attributes:
        effective: whether the fault is in effect; ``None`` where that could not be measured.
        text: one sentence with the numbers.
        numbers: the same for machines.
    """

    effective: Optional[bool]
    text: str
    numbers: Dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stray:
    """A kernel object that bears our mark, found by looking at the kernel alone.

    Attributes:
        device: on which it lies, as ``Injector.devices`` names it: whoever holds a fault there has it locked.
        text: what it is and where, in words, with the fault's id where the mark tells it.
        where: all that ``clear`` needs; plain JSON.
    """

    device: str
    text: str
    where: Dict[str, Any] = field(default_factory=dict)


class Injector(Protocol):
    """One kind of fault.

    An instance may keep sockets open between the calls; ``undo`` and ``residue`` need the record alone. They are also
    called for a record from before a reboot (its ``boot`` is another): what does not outlive a reboot has gone then,
    what does (the state of a port, a drained node, files) must still be looked at.
    """

    kind: ClassVar[str]
    about: ClassVar[str]
    mechanism: ClassVar[str]  # one sentence each, for people: how the fault is really made,
    undoing: ClassVar[str]  # how it is undone,
    proof: ClassVar[str]  # how it is proven that nothing of it is left,
    witnessed: ClassVar[str]  # and how its effect is measured
    where: ClassVar[Mapping[Ground, Reality]]  # where it can be made, and what it is there
    danger: ClassVar[Optional[str]]  # what may be lost for good, for people; None where nothing can
    example: ClassVar[Mapping[str, str]]  # keys of a document's fault, `on`, `with` and `for`, as they are written
    reversal: ClassVar[Literal["exact", "self", "none"]]  # undone by us; ends by itself; cannot be undone (a kill)
    targets: ClassVar[Tuple[TargetKey, ...]]  # keys of `on:` that it takes
    duration: ClassVar[Literal["required", "optional", "none"]]  # whether `for:` is given
    Params: ClassVar[Type[Any]]  # a dataclass; its annotations are the schema that users see
    runs_on: ClassVar[Literal["node", "controller"]]  # whose agent holds it

    def support(self, params: Any, target: Target) -> Support:
        """Whether this node can have the fault; reads only."""
        ...

    def plan(self, order: Order) -> UndoRecord:
        """Read the former state into a record; change nothing.

        Raises:
            InjectorError: the target is not there, or is in a state in which the fault would mean nothing.
        """
        ...

    def devices(self, order: Order) -> Tuple[str, ...]:
        """What the fault must have for itself on its node, such as one link or one process: reads only.

        The names must be the same for everybody on the machine (a namespace by its inode, say): they become locks. Two
        faults on one device are refused, so name what does not compose, and nothing more.
        """
        ...

    def prepare(self, record: UndoRecord) -> None:
        """Do everything slow, so that ``inject`` is one call into the kernel; disturb nothing yet."""
        ...

    def inject(self, record: UndoRecord) -> int:
        """Make the change. May crash at any line: the record is on disk.

        Returns:
            CLOCK_MONOTONIC in ns at which the effect was in place.
        """
        ...

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Measure the effect, in at most ``budget`` seconds."""
        ...

    def undo(self, record: UndoRecord) -> int:
        """Bring the former state back; idempotent, needs the record alone.

        Returns:
            CLOCK_MONOTONIC in ns at which the effect had ended.
        """
        ...

    def residue(self, record: UndoRecord) -> List[str]:
        """What is left of the fault, in words; empty when nothing is."""
        ...

    def strays(self, target: Target) -> List[Stray]:
        """What bears the mark of this kind in the kernel of this node, whoever made it; reads only.

        Args:
            target: the node alone: its namespaces.
        """
        ...

    def clear(self, stray: Stray) -> None:
        """Remove one; called only while its device is locked by the caller. No error if it has gone meanwhile."""
        ...

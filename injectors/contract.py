"""The contract between an injector and whoever runs it (the agent on a node).

The life of a fault, in order: ``support`` (can this node do it), ``plan`` (read, change nothing), the record is put on
stable storage, ``prepare`` (everything slow, nothing that disturbs), ``witness`` before, ``inject`` (the change alone),
``witness`` during, ``undo`` at the end, ``witness`` after, ``residue`` (nothing may be left), and only then is the
record removed. A process that finds a record and nobody holding it undoes the fault from the record alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Dict, List, Literal, Optional, Protocol, Tuple, Type

# What a parameter means is part of its type; documents carry units ("500ms"), injectors receive SI numbers.
Seconds = Annotated[float, "duration"]
Ratio = Annotated[float, "ratio"]
BitsPerSecond = Annotated[float, "rate"]
Bytes = Annotated[int, "size"]
GPU = Annotated[str, "gpu"]  # a GPU of the fault's node, as documents name it: gpu0

Reality = Literal["real", "emulated", "telemetry"]
Phase = Literal["before", "during", "after"]
TargetKey = Literal["node", "gpu", "rank", "process"]  # keys of a document's `on:`

RECORD_VERSION = 1


class InjectorError(Exception):
    """An injector cannot do what was asked; the message says what was found and what would be right."""


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


@dataclass(frozen=True)
class Target:
    """On what the fault is made, resolved on the node that has it.

    Attributes:
        node: the node's number, ``None`` on a machine that is no lab's node.
        rank: the training job's rank that is meant, where the fault is on a rank's process.
        role: the process of the job that is meant, where the fault is on one that is no rank's: ``launcher``.
        process: that process: ``pid`` (as its node sees it), ``start`` (ticks since boot, field 22 of
            /proc/PID/stat) and ``pidns`` (inode of its PID namespace).
        namespaces: paths of network namespaces on this node by device: ``gpu0``, ``nvswitch``...
        lab: folder of the lab's keeper, for faults on whole nodes.
    """

    node: Optional[int] = None
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
        )

    def as_dict(self) -> Dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Dict[str, Any]) -> UndoRecord:
        """Read one back.

        Raises:
            InjectorError: it was written by a newer version, or is no record.
        """
        version = data.get("version")
        if version != RECORD_VERSION:
            raise InjectorError(f"the undo record has version {version}, this program reads version {RECORD_VERSION}")
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


class Injector(Protocol):
    """One kind of fault.

    An instance may keep sockets open between the calls; ``undo`` and ``residue`` need the record alone.
    """

    kind: ClassVar[str]
    about: ClassVar[str]
    mechanism: ClassVar[str]  # one sentence each, for people: how the fault is really made,
    undoing: ClassVar[str]  # how it is undone,
    proof: ClassVar[str]  # and how it is proven that nothing of it is left
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

"""Faults of a node's place in Slurm: it is taken out of service, and comes back."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Literal, Mapping, NamedTuple, Optional, Tuple, Type

from injectors.contract import (
    Evidence,
    Ground,
    InjectorError,
    Order,
    Phase,
    Reality,
    Stray,
    Support,
    Target,
    TargetKey,
    UndoRecord,
)

_MARK = "chaos:"  # a reason of ours begins so, and goes on with the fault's id
_CONFIGS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
_PATIENCE = 10.0  # seconds for Slurm's controller to answer
_OUT_OF_SERVICE = {"DRAIN", "DOWN", "FAIL", "MAINT", "FUTURE", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_FIELD = re.compile(r"(?:^| )(NodeName|State|Reason)=(.*?)(?= [A-Z][A-Za-z]*=|$)")


@dataclass(frozen=True)
class DrainParams:
    """Parameters of ``node.drain``."""

    slurm_node: Optional[str] = field(
        default=None, metadata={"help": "the node's name in Slurm; its short host name if left out"}
    )

    def __post_init__(self) -> None:
        if self.slurm_node is not None and not _NAME.fullmatch(self.slurm_node):
            raise ValueError(f"slurm_node: found {self.slurm_node!r}; write one node's name, as sinfo -N shows it")


class Known(NamedTuple):
    """A node, as Slurm's controller has it.

    Attributes:
        states: its base state and all that is added to it, such as IDLE and DRAIN.
        reason: why it is out of service, with who said so and when; empty where nobody did.
    """

    name: str
    states: Tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        """As people say it."""
        return f"{self.name} is {'+'.join(self.states)}{f' ({self.reason})' if self.reason else ''}"

    def drained_for(self, reason: str) -> bool:
        """Whether it is drained, or on its way there, and that for this reason."""
        return "DRAIN" in self.states and self.reason.split(" [")[0] == reason


class Drain:
    """``node.drain``: Slurm gives a node no more jobs."""

    kind: ClassVar[str] = "node.drain"
    about: ClassVar[str] = "Slurm takes a node out of service: what runs there goes on, and no job is given to it."
    mechanism: ClassVar[str] = (
        "What its administrators do, on the node itself: `scontrol update nodename=N state=drain`, with a reason that "
        "bears the fault's id. Slurm's own controller keeps that: it outlives the node."
    )
    undoing: ClassVar[str] = (
        "As long as the reason is still ours, `state=resume`: a node that others have drained meanwhile stays so."
    )
    proof: ClassVar[str] = "Slurm's controller no longer has the node drained for that reason."
    witnessed: ClassVar[str] = "Slurm's controller tells the node's state, and the reason."
    where: ClassVar[Mapping[Ground, Reality]] = {"node": "real"}
    danger: ClassVar[Optional[str]] = None
    example: ClassVar[Mapping[str, str]] = {"on": "{node: 1}", "for": "1m"}
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    targets: ClassVar[Tuple[TargetKey, ...]] = ("node",)
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"
    runs_on: ClassVar[Literal["node", "controller"]] = "node"
    Params: ClassVar[Type[Any]] = DrainParams

    def support(self, params: DrainParams, target: Target) -> Support:
        """Possible on a node of a Slurm cluster, for root or Slurm's own user."""
        if target.namespaces:
            return Support("real", ("a machine: the lab has no Slurm; write `cluster: FILE`, an inventory",))
        if shutil.which("scontrol") is None:
            return Support("real", ("scontrol: the package slurm-client, on a node of a Slurm cluster",))
        if not _is_configured():
            return Support(
                "real", (f"Slurm's configuration: none of {', '.join(_CONFIGS)}, nor what SLURM_CONF names",)
            )
        return Support("real")

    def plan(self, order: Order) -> UndoRecord:
        """Refuse a node that is out of service already: it would be put back into service by the undo."""
        self.support(order.params, order.target).require(self.kind)
        name = _name(order.params)
        known = _show(name)
        if known is None:
            raise InjectorError(f"Slurm has no node {name}; name it with slurm_node, as sinfo -N shows it")
        if _OUT_OF_SERVICE & set(known.states):
            ours = (
                ": `chaos sweep` puts it back" if known.reason.startswith(_MARK) else ", by somebody else: left alone"
            )
            raise InjectorError(f"{known}: it is out of service already{ours}")
        return UndoRecord.of(self, order, {"name": name, "states": list(known.states), "reason": _reason(order.fault)})

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The node's place in Slurm."""
        return (f"slurm:{_name(order.params)}",)

    def prepare(self, record: UndoRecord) -> None:
        """Nothing to prepare: it is one call."""

    def inject(self, record: UndoRecord) -> int:
        """Drain it; Slurm's controller has done it when scontrol ends."""
        _update(record.before["name"], "state=drain", f"reason={record.before['reason']}")
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Ask Slurm's controller."""
        known = _show(record.before["name"], timeout=max(budget, 0.5))
        if known is None:
            return Evidence(None, f"Slurm has no node {record.before['name']} any more")
        drained = known.drained_for(record.before["reason"])
        return Evidence(drained, str(known), {"states": list(known.states), "drained": drained})

    def undo(self, record: UndoRecord) -> int:
        """Resume it, if it is still drained for our reason."""
        known = _show(record.before["name"])
        if known is not None and known.drained_for(record.before["reason"]):
            _update(known.name, "state=resume")
        return time.monotonic_ns()

    def residue(self, record: UndoRecord) -> List[str]:
        """A node that is drained for our reason; also after a reboot, which changes nothing of it."""
        try:
            known = _show(record.before["name"])
        except InjectorError as error:
            return [str(error)]
        return [str(known)] if known is not None and known.drained_for(record.before["reason"]) else []

    def strays(self, target: Target) -> List[Stray]:
        """This node, if it is drained for a reason that bears our mark."""
        if target.namespaces or shutil.which("scontrol") is None or not _is_configured():
            return []
        return [
            Stray(f"slurm:{known.name}", str(known), {"name": known.name, "reason": known.reason.split(" [")[0]})
            for known in _all()
            if "DRAIN" in known.states and known.reason.startswith(_MARK)
        ]

    def clear(self, stray: Stray) -> None:
        """Resume it, if it is still drained for that reason."""
        known = _show(stray.where["name"])
        if known is not None and known.drained_for(stray.where["reason"]):
            _update(known.name, "state=resume")


def _reason(fault: str) -> str:
    return f"{_MARK}{fault}"


def _name(params: DrainParams) -> str:
    return params.slurm_node or socket.gethostname().partition(".")[0]


def _is_configured() -> bool:
    """Whether this machine belongs to a Slurm: without a configuration its programs search the network for one."""
    return any(os.path.exists(path) for path in (os.environ.get("SLURM_CONF", ""), *_CONFIGS))


def _show(name: str, timeout: float = _PATIENCE) -> Optional[Known]:
    """A node; ``None`` if Slurm has none of this name.

    Raises:
        InjectorError: Slurm's controller does not answer.
    """
    code, told = _scontrol("show", "node", name, "--oneliner", timeout=timeout)
    if code != 0:
        if "not found" in told:
            return None
        raise InjectorError(f"scontrol show node {name}: {told}")
    [known] = _read(told)
    return known


def _all() -> List[Known]:
    code, told = _scontrol("show", "node", "--oneliner", timeout=_PATIENCE)
    if code != 0:
        raise InjectorError(f"scontrol show node: {told}")
    return _read(told)


def _read(text: str) -> List[Known]:
    found = []
    for line in text.splitlines():
        fields: Dict[str, str] = dict(_FIELD.findall(line.strip()))
        if "NodeName" in fields:
            # A star is for one that does not answer; others stand for power, reboots and the like.
            states = tuple(state.rstrip("*~#!%$@^-") for state in fields["State"].split("+"))
            found.append(Known(fields["NodeName"], states, fields.get("Reason", "")))
    return found


def _update(name: str, *what: str) -> None:
    code, told = _scontrol("update", f"nodename={name}", *what, timeout=_PATIENCE)
    if code != 0:
        raise InjectorError(f"scontrol update nodename={name} {' '.join(what)}: {told}")


def _scontrol(*words: str, timeout: float) -> Tuple[int, str]:
    """Its exit status, and what it says, or its complaint in one line."""
    try:
        done = subprocess.run(
            ["scontrol", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
    except FileNotFoundError:
        raise InjectorError("there is no scontrol on this node any more") from None
    except subprocess.TimeoutExpired:
        raise InjectorError(f"Slurm's controller does not answer within {timeout:g} s (scontrol {words[0]})") from None
    if done.returncode == 0:
        return 0, done.stdout
    return done.returncode, " ".join((done.stderr.strip() or done.stdout.strip()).split())

"""Faults of power: a node goes off with everything on it, and is booted again at the end.

In the lab the keeper is the power supply. It is asked over its Unix socket, by an agent outside the node.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Literal, Mapping, Optional, Tuple, Type

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

_BOOT_PATIENCE = 10.0  # seconds for a node of the lab to go off and to come back


class LabGone(InjectorError):
    """No keeper answers: the lab has gone, and its nodes with it."""


def _ask(lab: str, message: Dict[str, Any]) -> Dict[str, Any]:
    """One request to the lab's keeper.

    Raises:
        LabGone: no keeper answers.
        InjectorError: it refuses.
    """
    try:
        # Through a descriptor of the folder: a Unix socket's path may have 107 bytes, a run's folder more.
        folder = os.open(lab, os.O_PATH | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.settimeout(_BOOT_PATIENCE)
                sock.connect(f"/proc/self/fd/{folder}/keeper.sock")
                sock.send(json.dumps(message).encode())
                data = sock.recv(192 * 1024)
        finally:
            os.close(folder)
    except OSError as error:
        raise LabGone(f"the lab in {lab} does not answer: {error.strerror or error}") from error
    if not data:
        raise LabGone(f"the lab in {lab} has gone")
    answer: Dict[str, Any] = json.loads(data)
    if "error" in answer:
        raise InjectorError(f"the lab refuses: {answer['error']}")
    return answer


def _processes_in(pidns: int) -> int:
    """How many processes of this machine live in a PID namespace (its inode)."""
    count = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            count += os.stat(f"/proc/{name}/ns/pid").st_ino == pidns
        except OSError:  # gone, or not ours to look into
            continue
    return count


@dataclass(frozen=True)
class PowerOffParams:
    """``power.off`` has no parameters."""


class PowerOff:
    """``power.off``: a node loses power; at the end it is switched on and boots."""

    kind: ClassVar[str] = "power.off"
    about: ClassVar[str] = "A node loses power: everything on it dies at once; at the end it is switched on again."
    mechanism: ClassVar[str] = (
        "The lab's keeper kills the init of the node's PID namespace, and the kernel everything on the node with it."
    )
    undoing: ClassVar[str] = "The keeper switches the node on, and it boots with new namespaces and a new boot id."
    proof: ClassVar[str] = "The keeper, asked again, reports the node's power as on."
    witnessed: ClassVar[str] = "The keeper reports the power as off, and no process of the former boot is alive."
    where: ClassVar[Mapping[Ground, Reality]] = {"lab": "emulated"}
    danger: ClassVar[Optional[str]] = None
    example: ClassVar[Mapping[str, str]] = {"on": "{node: 1}", "for": "3s"}
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    targets: ClassVar[Tuple[TargetKey, ...]] = ("node",)
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"
    runs_on: ClassVar[Literal["node", "controller"]] = "controller"

    Params: ClassVar[Type[Any]] = PowerOffParams

    def support(self, params: PowerOffParams, target: Target) -> Support:
        """Possible for a node of the lab."""
        missing = (
            () if target.lab else ("a lab: the power of real nodes is switched by their BMC, which is not built yet",)
        )
        return Support("emulated", missing)

    def plan(self, order: Order) -> UndoRecord:
        """Keep the node's boot id; refuse a node that is off already."""
        self.support(order.params, order.target).require(self.kind)
        node = self._node(order.target.lab, order.target.node)
        if node["power"] != "on":
            raise InjectorError(f"node {order.target.node} is {node['power']}: its power cannot be lost")
        return UndoRecord.of(self, order, {"boot_id": node["boot_id"], "pidns": node["pidns"]})

    @staticmethod
    def _node(lab: Optional[str], number: Optional[int]) -> Dict[str, Any]:
        assert lab is not None
        for node in _ask(lab, {"op": "show"})["nodes"]:
            if node["node"] == number:
                return dict(node)
        raise InjectorError(f"the lab has no node {number}")

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The node's power."""
        assert order.target.lab is not None, "plan refuses it elsewhere"
        return (f"power:{os.path.realpath(order.target.lab)}:node{order.target.node}",)

    def prepare(self, record: UndoRecord) -> None:
        """Nothing to prepare: power is one request."""

    def inject(self, record: UndoRecord) -> int:
        """Cut the power; the keeper stamps the instant."""
        request = {"op": "power", "node": record.target["node"], "state": "off"}
        return int(_ask(record.target["lab"], request)["switched_ns"])

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Ask the keeper, and count the processes that are alive in the node's former PID namespace."""
        end = time.monotonic() + budget
        while True:
            node = self._node(record.target["lab"], record.target["node"])
            alive = _processes_in(record.before["pidns"])
            off = node["power"] == "off" and alive == 0
            same_boot = node["boot_id"] == record.before["boot_id"]
            settled = off if phase == "during" else node["power"] == "on"
            if settled or time.monotonic() > end:
                break
            time.sleep(0.002)
        text = f"node {record.target['node']} is {node['power']}, {alive} processes of its former boot are alive"
        if phase == "after" and not same_boot:
            text += f"; it has booted anew (boot id {node['boot_id'][:8]})"
        numbers = {"power": node["power"], "alive": alive, "boots": node["boots"], "same_boot": same_boot}
        return Evidence(node["power"] != "on" and alive == 0, text, numbers)

    def undo(self, record: UndoRecord) -> int:
        """Switch the node on and wait until it has booted. A lab that has gone has no nodes to boot."""
        lab, number = record.target["lab"], record.target["node"]
        end = time.monotonic() + _BOOT_PATIENCE
        while True:
            try:
                return int(_ask(lab, {"op": "power", "node": number, "state": "on"})["switched_ns"])
            except LabGone:
                return time.monotonic_ns()
            except InjectorError:  # it is still going off
                if time.monotonic() > end:
                    raise
                time.sleep(0.002)

    def residue(self, record: UndoRecord) -> List[str]:
        """A node that is not on."""
        try:
            node = self._node(record.target["lab"], record.target["node"])
        except LabGone:
            return []
        return [] if node["power"] == "on" else [f"node {record.target['node']} is {node['power']}"]

    def strays(self, target: Target) -> List[Stray]:
        """None: a node that is off bears no mark, and may be meant to be off."""
        return []

    def clear(self, stray: Stray) -> None:
        """Never called: there are no strays."""
        raise InjectorError(f"power.off leaves no mark by which {stray.text} could be ours")

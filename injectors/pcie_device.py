"""Faults of PCI devices as a whole, by the kernel's files of the bus (Documentation/ABI/testing/sysfs-bus-pci).

Nothing there can bear a mark of ours: the undo record alone says whose fault it is that a device is missing.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, List, Literal, Mapping, Optional, Set, Tuple, Type

from injectors import _control
from injectors._links import Links
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

_BUS = "/sys/bus/pci"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_BRIDGE = "0x06"  # base class of bridges, in the PCI code and ID assignment specification
_NO_OVERRIDE = "(null)"
_DRIVER_PATIENCE = 10.0  # seconds for a driver to take a device that has come back
_PAUSE = 0.01  # seconds between two looks


@dataclass(frozen=True)
class RemoveParams:
    """Parameters of ``pcie.remove``."""

    device: str = field(metadata={"help": "the address of the device, as lspci -D shows it, such as '0000:41:00.0'"})

    def __post_init__(self) -> None:
        if not _ADDRESS.fullmatch(self.device):
            raise ValueError(f"found device {self.device!r}; write an address as of lspci -D, such as 0000:41:00.0")


class Remove:
    """``pcie.remove``: a device has gone from the bus, and is found again."""

    kind: ClassVar[str] = "pcie.remove"
    about: ClassVar[str] = (
        "A PCI device has gone from the bus: its driver loses it, and with the driver all who use it."
    )
    mechanism: ClassVar[str] = (
        "A 1 is written to the device's file `remove` in /sys/bus/pci/devices: the kernel takes the driver away from "
        "it, and forgets it. The hardware itself stays powered."
    )
    undoing: ClassVar[str] = (
        "The bus above the device is scanned again (`rescan`), and the driver that had it is given it back; addresses "
        "and routes of a network card are for whoever configures them."
    )
    proof: ClassVar[str] = (
        "The device is there again with the same vendor and device number, and the same driver has it. Nothing on the "
        "bus can bear a mark: without the record, nobody can tell that a fault took the device."
    )
    witnessed: ClassVar[str] = "The kernel no longer lists the device; afterwards it lists it, and which driver has it."
    where: ClassVar[Mapping[Ground, Reality]] = {"node": "real"}
    danger: ClassVar[Optional[str]] = (
        "whoever uses the device loses it, a network card its addresses; some devices come back only after a reboot"
    )
    example: ClassVar[Mapping[str, str]] = {"on": "{node: 0}", "with": "{device: '0000:41:00.0'}", "for": "10s"}
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    targets: ClassVar[Tuple[TargetKey, ...]] = ("node",)
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"
    runs_on: ClassVar[Literal["node", "controller"]] = "node"
    Params: ClassVar[Type[Any]] = RemoveParams

    def support(self, params: RemoveParams, target: Target) -> Support:
        """Possible for root on a machine with a PCI bus."""
        if target.namespaces:
            return Support("real", ("a machine: the lab has no PCI devices; write `cluster: FILE`, an inventory",))
        rescan = os.path.join(_BUS, "rescan")
        if not os.path.exists(rescan):
            return Support("real", (f"a PCI bus: there is no {rescan}",))
        if not os.access(rescan, os.W_OK):
            return Support("real", ("the right to remove devices: run the agent as root of the node",))
        return Support("real")

    def plan(self, order: Order) -> UndoRecord:
        """Keep what the device is and who drives it; refuse what the node itself needs."""
        self.support(order.params, order.target).require(self.kind)
        address = order.params.device
        if not _present(address):
            raise InjectorError(f"there is no PCI device {address}; `lspci -D` lists those that there are")
        folder = _folder(address)
        if _text(folder, "class").startswith(_BRIDGE):
            raise InjectorError(f"{address} is a bridge, and others are behind it: aim at a device")
        override = _text(folder, "driver_override")
        if override not in ("", _NO_OVERRIDE):
            raise InjectorError(f"{address} is bound to {override} by driver_override, which a removal forgets")
        _refuse_control(address)
        for number in sorted(_in_use()):
            if _is_below(f"/sys/dev/block/{number}", folder):
                raise InjectorError(
                    f"{address} is never a target: a disk behind it ({number}) is mounted or swapped to"
                )
        above = os.path.basename(os.path.dirname(os.path.realpath(folder)))
        before = {"identity": _identity(folder), "driver": _driver(address), "above": above}
        return UndoRecord.of(self, order, before)

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The device."""
        return (f"pci:{order.params.device}",)

    def prepare(self, record: UndoRecord) -> None:
        """Nothing to prepare: a removal is one write."""

    def inject(self, record: UndoRecord) -> int:
        """Remove the device; the kernel has done it when the write returns."""
        _write(os.path.join(_folder(record.params["device"]), "remove"), "1")
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Whether the kernel lists the device."""
        address = record.params["device"]
        there, driver = _present(address), _driver(address)
        text = f"PCI device {address} is on the bus, driven by {driver or 'nobody'}"
        if not there:
            text = f"PCI device {address} is not on the bus"
        return Evidence(not there, text, {"present": there, "driver": driver})

    def undo(self, record: UndoRecord) -> int:
        """Scan for the device where it is missing, and see that its driver has it again."""
        address, driver = record.params["device"], record.before["driver"]
        if not _present(address):
            above = os.path.join(_BUS, "devices", record.before["above"], "rescan")
            _write(above if os.path.exists(above) else os.path.join(_BUS, "rescan"), "1")
        ended = time.monotonic_ns()
        if driver is None or not _present(address):
            return ended
        end = time.monotonic() + _DRIVER_PATIENCE
        while _driver(address) is None and time.monotonic() < end:
            time.sleep(_PAUSE)  # some drivers are given their devices later
        if _driver(address) is None:
            _write(os.path.join(_BUS, "drivers", driver, "bind"), address)
        return ended

    def residue(self, record: UndoRecord) -> List[str]:
        """A device that is missing, is another one, or has not its driver."""
        address, before = record.params["device"], record.before
        if not _present(address):
            return [f"PCI device {address} ({before['identity']}) is not on the bus"]
        identity, driver = _identity(_folder(address)), _driver(address)
        if identity != before["identity"]:
            return [f"PCI device {address} is {identity}, and was {before['identity']}"]
        if driver != before["driver"] and before["driver"] is not None:
            return [f"PCI device {address} is driven by {driver or 'nobody'}, and was by {before['driver']}"]
        return []

    def strays(self, target: Target) -> List[Stray]:
        """None: what has gone bears no mark."""
        return []

    def clear(self, stray: Stray) -> None:
        """Never called: there are no strays."""
        raise InjectorError(f"{self.kind} leaves no mark by which {stray.text} could be ours")


def _folder(address: str) -> str:
    return os.path.join(_BUS, "devices", address)


def _present(address: str) -> bool:
    return os.path.isdir(_folder(address))


def _driver(address: str) -> Optional[str]:
    try:
        return os.path.basename(os.readlink(os.path.join(_folder(address), "driver")))
    except OSError:
        return None


def _identity(folder: str) -> str:
    return f"{_text(folder, 'vendor')}:{_text(folder, 'device')}"


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _write(path: str, value: str) -> None:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(value)
    except OSError as error:
        raise InjectorError(f"{path} does not take {value}: {error.strerror}") from error


def _is_below(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + "/")


def _refuse_control(address: str) -> None:
    """Raise InjectorError if a network interface of the device is the way to the controller."""
    links = Links()
    try:
        for name in sorted(os.listdir("/sys/class/net")):
            if _is_below(os.path.join("/sys/class/net", name), _folder(address)):
                link = links.find(name)
                if link is not None:
                    _control.refuse_interface(links, link.interface, name)
    finally:
        links.close()


def _in_use() -> Set[str]:
    """Numbers (8:1) of the block devices that are mounted or swapped to, and of all that these are made of."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        found = {line.split()[2] for line in file}
    with open("/proc/swaps", encoding="utf-8", errors="replace") as file:
        for line in file.readlines()[1:]:
            try:
                number = os.stat(line.split()[0]).st_rdev
            except OSError:
                continue
            found.add(f"{os.major(number)}:{os.minor(number)}")
    todo = list(found)
    while todo:
        slaves = f"/sys/dev/block/{todo.pop()}/slaves"
        for name in os.listdir(slaves) if os.path.isdir(slaves) else []:
            number_of = _text(os.path.join(slaves, name), "dev")
            if number_of not in found:
                found.add(number_of)
                todo.append(number_of)
    return found

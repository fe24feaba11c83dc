"""`pcie.remove` on the virtual machine's own network card and disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_help import eventually

from injectors import pcie_device
from injectors.contract import InjectorError, Order, Target, UndoRecord
from injectors.pcie_device import Remove, RemoveParams

pytestmark = pytest.mark.kernel

BUS = Path("/sys/bus/pci")


@pytest.fixture(scope="module")
def addresses() -> dict[str, str]:
    """Addresses of devices by their drivers."""
    subprocess.run(["modprobe", "-a", "e1000e", "nvme"], check=True)

    def bound() -> dict[str, str]:
        found = {each.name: sorted(path.name for path in each.glob("0000:*")) for each in BUS.glob("drivers/*")}
        return {driver: there[0] for driver, there in found.items() if there}

    eventually(lambda: {"e1000e", "nvme", "pcieport"} <= bound().keys(), "the devices with their drivers")
    return bound()


@pytest.fixture(autouse=True)
def all_there(addresses: dict[str, str]) -> Iterator[None]:
    yield
    (BUS / "rescan").write_text("1")


def ordered(address: str) -> Order:
    return Order("f1", RemoveParams(address), Target(node=0), 60.0)


@pytest.mark.parametrize("driver", ["e1000e", "nvme"])
def test_a_device_is_gone_until_the_undo_from_the_record_alone(addresses: dict[str, str], driver: str) -> None:
    address = addresses[driver]
    injector = Remove()
    record = injector.plan(ordered(address))
    injector.prepare(record)
    assert injector.witness(record, "before", 1).effective is False
    injector.inject(record)
    assert injector.witness(record, "during", 1).effective is True
    assert not (BUS / "devices" / address).exists()
    [left] = injector.residue(record)
    assert f"PCI device {address} " in left
    again = UndoRecord.from_dict(record.as_dict())
    for _ in range(2):
        Remove().undo(again)
    assert Remove().residue(again) == []
    after = Remove().witness(again, "after", 1)
    assert after.effective is False
    assert after.numbers == {"present": True, "driver": driver}


def test_a_device_without_its_driver_is_residue_until_it_is_bound_again(addresses: dict[str, str]) -> None:
    address = addresses["e1000e"]
    record = Remove().plan(ordered(address))
    (BUS / "drivers/e1000e/unbind").write_text(address)
    assert Remove().residue(record) == [f"PCI device {address} is driven by nobody, and was by e1000e"]
    Remove().undo(record)
    assert Remove().residue(record) == []


def test_what_the_node_needs_is_never_taken(addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InjectorError, match="is a bridge"):
        Remove().plan(ordered(addresses["pcieport"]))
    with pytest.raises(InjectorError, match=r"there is no PCI device 0000:ff:1f\.7"):
        Remove().plan(ordered("0000:ff:1f.7"))
    card = BUS / "devices" / addresses["e1000e"]
    [interface] = (each.name for each in (card / "net").iterdir())
    subprocess.run(["ip", "address", "add", "10.77.0.1/24", "dev", interface], check=True)
    subprocess.run(["ip", "link", "set", interface, "up"], check=True)
    monkeypatch.setenv("CHAOS_CONTROL", "10.77.0.9")
    with pytest.raises(InjectorError, match=f"{interface} is never a target: it is the way to 10.77.0.9"):
        Remove().plan(ordered(card.name))
    [number] = (each.read_text().strip() for each in (BUS / "devices" / addresses["nvme"]).glob("nvme/*/nvme*n1/dev"))
    monkeypatch.setattr(pcie_device, "_in_use", lambda: {number})
    with pytest.raises(InjectorError, match="is mounted or swapped to"):
        Remove().plan(ordered(addresses["nvme"]))

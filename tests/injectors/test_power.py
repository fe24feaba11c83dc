"""``power.off`` on the nodes of a real lab."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_help import alive_in

from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from injectors import power
from injectors.contract import InjectorError, Order, Target, UndoRecord
from injectors.power import PowerOff, PowerOffParams

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("power").joinpath(*["a-folder-of-a-run"] * 8)
    with Lab.up(LabSpec(nodes=2, gpus=1), folder) as it:
        yield it


def ordered(lab: Lab, node: int = 0) -> Order:
    return Order("f1", PowerOffParams(), Target(node=node, lab=str(lab.directory)), 60.0)


def test_a_node_goes_off_with_everything_on_it_and_boots_at_the_end(lab: Lab) -> None:
    injector = PowerOff()
    former = lab.show()["nodes"][0]
    process = lab.spawn(["/bin/sleep", "1000"], node=0)
    record = injector.plan(ordered(lab))
    assert record.before == {"boot_id": former["boot_id"], "pidns": former["pidns"]}
    injector.prepare(record)
    assert injector.witness(record, "before", 0.1).effective is False
    started = time.monotonic_ns()
    assert started <= injector.inject(record) <= time.monotonic_ns()
    during = injector.witness(record, "during", 20)
    assert during.effective is True, during
    assert (during.numbers["power"], during.numbers["alive"]) == ("off", 0)
    assert process.wait() == -9
    assert alive_in(former["pidns"]) == []
    assert injector.residue(record) == ["node 0 is off"]
    stranger, again = PowerOff(), UndoRecord.from_dict(record.as_dict())
    stranger.undo(again)
    booted = lab.show()["nodes"][0]
    stranger.undo(again)
    assert stranger.residue(again) == []
    after = stranger.witness(again, "after", 20)
    assert after.effective is False, after
    assert f"it has booted anew (boot id {booted['boot_id'][:8]})" in after.text
    assert lab.show()["nodes"][0]["boots"] == former["boots"] + 1, "it boots once, however often it is undone"
    assert lab.show()["nodes"][1]["boots"] == 1


def test_the_undo_waits_for_a_node_that_is_still_going_off(lab: Lab) -> None:
    injector = PowerOff()
    record = injector.plan(ordered(lab))
    injector.inject(record)
    injector.undo(record)
    assert injector.residue(record) == []


def test_a_node_that_is_off_cannot_lose_its_power(lab: Lab) -> None:
    lab.power(1, "off")
    lab.wait_power(1, "off")
    with pytest.raises(InjectorError, match="node 1 is off: its power cannot be lost"):
        PowerOff().plan(ordered(lab, 1))
    lab.power(1, "on")
    with pytest.raises(InjectorError, match="the lab has no node 7"):
        PowerOff().plan(ordered(lab, 7))


def test_without_a_lab_it_says_what_is_missing() -> None:
    with pytest.raises(InjectorError, match=r"power.off is not possible here; missing: a lab: .* BMC"):
        PowerOff().plan(Order("f1", PowerOffParams(), Target(node=0), 1.0))


def test_a_lab_that_has_gone_has_nothing_to_undo(tmp_path: Path) -> None:
    with Lab.up(LabSpec(1, 1), tmp_path / "lab") as lab:
        injector = PowerOff()
        record = injector.plan(ordered(lab))
        injector.inject(record)
        lab.kill()
        injector.undo(record)
        assert injector.residue(record) == []
        with pytest.raises(power.LabGone, match="does not answer"):
            injector.witness(record, "after", 0.1)


@pytest.mark.control
def test_a_power_request_that_is_swallowed_is_not_witnessed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = power._ask

    def swallow(folder: str, message: dict[str, Any]) -> dict[str, Any]:
        return {"switched_ns": time.monotonic_ns()} if message["op"] == "power" else ask(folder, message)

    monkeypatch.setattr(power, "_ask", swallow)
    injector = PowerOff()
    record = injector.plan(ordered(lab))
    injector.inject(record)
    during = injector.witness(record, "during", 0.1)
    assert during.effective is False, during
    assert during.numbers["alive"] > 0


@pytest.mark.control
def test_a_boot_that_is_swallowed_is_found_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    injector = PowerOff()
    record = injector.plan(ordered(lab))
    injector.inject(record)
    assert injector.witness(record, "during", 20).effective is True
    with monkeypatch.context() as patch:
        ask = power._ask
        patch.setattr(power, "_ask", lambda folder, m: {"switched_ns": 1} if m["op"] == "power" else ask(folder, m))
        injector.undo(record)
        assert injector.residue(record) == ["node 0 is off"]
        assert injector.witness(record, "after", 0.1).effective is True
    injector.undo(record)

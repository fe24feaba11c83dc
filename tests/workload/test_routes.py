"""What the launcher does with what it knows of paths: addresses for the next generation."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.workload.reference.beacons import BEAT_S, NVLINK, PCIE, SILENT_S, UNHEARD_S
from chaos.workload.reference.config import JobConfig, Place
from chaos.workload.reference.launcher.paths import HOLD_S
from chaos.workload.reference.launcher.routes import Routes
from chaos.workload.reference.messages import Seat

PLACES = {1: Place(0, 0), 2: Place(0, 1), 3: Place(1, 0), 4: Place(1, 1)}


class Heard:
    """Routes that hear four processes on two nodes, beat by beat."""

    def __init__(self, folder: Path, lab: str | None = "lab", *, watched: bool = True) -> None:
        folders = {name: str(folder / name) for name in ("events_dir", "logs_dir", "checkpoint_dir")}
        world = [{"node": place.node, "gpu": place.gpu} for place in PLACES.values()]
        config = JobConfig.parse(folders | {"seed": 1, "recovery": "peer", "world": world, "lab_socket": lab})
        self.routes = Routes(config, watched=watched)
        self.now = 50.0
        self.sick: dict[str, float] = {}  # paths between 1 and 2, with the instant of the last beacon
        self.use()
        self.run(UNHEARD_S + 2 * SILENT_S)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
            for process in PLACES:
                other = {1: 2, 2: 1}.get(process)
                silent = {} if other is None else {(other, path): since for path, since in self.sick.items()}
                reported = {key: since for key, since in silent.items() if self.now - since > SILENT_S}
                self.routes.hear(process, reported, sent=self.now, now=self.now)
            self.routes.watch(PLACES, self.now)

    def use(self) -> tuple[str, ...]:
        """Take the next generation into use; returns its addresses."""
        seats = tuple(Seat(process, place, self.routes.bind(place)) for process, place in PLACES.items())
        self.routes.take(seats, self.now)
        return tuple(seat.bind for seat in seats)


ALL_NVLINK = ("10.77.0.10", "10.77.0.11", "10.77.1.10", "10.77.1.11")
NODE_0_PCIE = ("10.78.0.10", "10.78.0.11", "10.77.1.10", "10.77.1.11")


def test_a_node_leaves_a_sick_medium_once_and_returns_when_there_is_time(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    heard.sick = {NVLINK: heard.now}
    heard.run(0.2)
    [detour] = heard.routes.detours(PLACES, heard.now)
    assert (detour.medium, detour.at_once) == (PCIE, True)
    assert heard.routes.detours(PLACES, heard.now) == [], "it is planned already"
    assert not heard.routes.stuck(PLACES)
    assert heard.use() == NODE_0_PCIE
    heard.run(HOLD_S)
    assert heard.routes.returns(PLACES, heard.now) == []
    heard.sick = {}
    heard.run(HOLD_S + 0.1)
    [back] = heard.routes.returns(PLACES, heard.now)
    assert (back.medium, back.at_once) == (NVLINK, False)
    assert not heard.routes.relapsed(PLACES)
    assert heard.use() == ALL_NVLINK


def test_a_return_that_relapses_is_noticed_and_what_was_planned_is_forgotten(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    heard.sick = {NVLINK: heard.now}
    heard.run(0.2)
    heard.routes.detours(PLACES, heard.now)
    heard.use()
    heard.sick = {}
    heard.run(HOLD_S + 0.1)
    heard.routes.returns(PLACES, heard.now)
    heard.sick = {NVLINK: heard.now}
    heard.run(0.2)
    assert heard.routes.relapsed(PLACES)
    heard.routes.stay()
    assert not heard.routes.relapsed(PLACES)
    assert heard.use() == NODE_0_PCIE


def test_where_both_media_are_sick_there_is_nothing_to_do_but_wait(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    heard.sick = {NVLINK: heard.now, PCIE: heard.now}
    heard.run(0.3)
    assert heard.routes.detours(PLACES, heard.now) == []
    assert heard.routes.stuck(PLACES)
    heard.sick = {}
    heard.run(0.2)
    assert not heard.routes.stuck(PLACES)


@pytest.mark.parametrize(("lab", "watched"), [(None, True), ("lab", False)])
def test_without_a_second_path_or_a_recovery_that_leaves_one_nothing_is_ever_wrong(
    tmp_path: Path, lab: str | None, watched: bool
) -> None:
    heard = Heard(tmp_path, lab, watched=watched)
    heard.sick = {NVLINK: heard.now, PCIE: heard.now}
    heard.run(0.5)
    assert heard.routes.detours(PLACES, heard.now) == []
    assert not heard.routes.stuck(PLACES)
    assert heard.routes.cut_off([1, 2, 3, 4]) == {}
    assert heard.routes.unproven([1, 2], [3], heard.now) == set()

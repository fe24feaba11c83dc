"""Beacons between the GPUs of a real lab, in time that the test makes: a beat waits for what must have arrived."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from lab_help import link_down, nvswitch_drops

from chaos.lab import namespace
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec, nvlink_address, pcie_address
from chaos.workload.reference import beacons
from chaos.workload.reference.beacons import (
    BEAT_S,
    LATE_S,
    NVLINK,
    PCIE,
    PORT,
    SILENT_S,
    UNHEARD_S,
    Beacons,
    End,
    Partner,
    Report,
    partners,
)
from chaos.workload.reference.config import Place

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="the test enters the lab's namespaces itself: that needs root"),
]

DEVICES = {NVLINK: "nvl0", PCIE: "pcie0"}
PATIENCE_MS = 30_000  # only a test that fails waits so long
BOTH = {(1, 2), (2, 1)}


def address(place: Place, path: str) -> str:
    return {NVLINK: nvlink_address, PCIE: pcie_address}[path](place.node, place.gpu)


class Processes:
    """Processes of a job in their GPUs' namespaces, each with its beacons, all in this test.

    Attributes:
        now: what their clocks show.
        asleep: processes that do not beat.
        dead: what is dropped now, as far as the test knows: sender, receiver, path.
        reports: all so far, with the process that made them.
    """

    def __init__(self, networks: dict[Place, int], places: dict[int, Place]) -> None:
        self.now = 1000.0
        self.places = places
        self.asleep: set[int] = set()
        self.dead: set[tuple[int, int, str]] = set()
        self.reports: list[tuple[int, Report]] = []
        self.beacons: dict[int, Beacons] = {}
        self._watched = partners(places)
        self._due: set[tuple[int, str]] = set()  # receivers and paths on which something must have come
        for process, place in places.items():
            ends = {path: End(device, address(place, path)) for path, device in DEVICES.items()}
            with namespace.inside_network(networks[place]):
                self.beacons[process] = Beacons(process, ends, lambda: self.now)
        for process in places:
            self.beacons[process].watch(self.partners_of(process))

    def partners_of(self, process: int) -> list[Partner]:
        others = self._watched[process].items()
        return [Partner(other, {path: address(self.places[other], path) for path in paths}) for other, paths in others]

    def close(self) -> None:
        for each in self.beacons.values():
            each.close()

    def beat(self, after: float = BEAT_S) -> list[tuple[int, Report]]:
        """One beat of all; returns what they report."""
        self.now += after
        new = []
        for process in self.beacons.keys() - self.asleep:
            self.await_datagrams(process)
            new += [(process, report) for report in self.beacons[process].beat()]
            for other, paths in self._watched[process].items():
                self._due |= {(other, path) for path in paths if (process, other, path) not in self.dead}
        self.reports += new
        return new

    def await_datagrams(self, process: int) -> None:
        for path in DEVICES:
            if (process, path) in self._due:
                arrived = readable(self.beacons[process]._sockets[path], PATIENCE_MS)
                assert arrived, f"process {process} never got what was sent to it over {path}"
                self._due.remove((process, path))

    def run(self, seconds: float) -> list[tuple[int, Report]]:
        return [report for _ in range(round(seconds / BEAT_S)) for report in self.beat()]

    def until_reported(self, within: float) -> list[tuple[int, Report]]:
        """Beats until somebody reports something; returns what."""
        for _ in range(round(within / BEAT_S)):
            if new := self.beat():
                return new
        raise AssertionError("nobody reports anything")

    @contextmanager
    def drop_nvlink(self, switch: int, pairs: set[tuple[int, int]]) -> Iterator[None]:
        """Drop on the NVSwitch between processes 1 and 2, one way or both."""
        with nvswitch_drops(switch, [self.places[receiver].gpu for _, receiver in sorted(pairs)]):
            self.dead = {(*pair, NVLINK) for pair in pairs}
            yield
        self.dead = set()


def readable(sock: socket.socket, milliseconds: int) -> bool:
    waiter = select.poll()
    waiter.register(sock, select.POLLIN)
    return bool(waiter.poll(milliseconds))


def silences(reports: list[tuple[int, Report]]) -> set[tuple[int, int, str]]:
    """Receivers, senders and paths; fails where one is heard again."""
    assert all(report.since is not None for _, report in reports)
    return {(process, report.process, report.path) for process, report in reports}


def recoveries(reports: list[tuple[int, Report]]) -> set[tuple[int, int, str]]:
    assert all(report.since is None for _, report in reports)
    return {(process, report.process, report.path) for process, report in reports}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.up(LabSpec(nodes=2, gpus=4), tmp_path_factory.mktemp("beacons") / "lab") as it:
        yield it


@pytest.fixture(scope="module")
def fds(lab: Lab) -> Iterator[list[dict[str, int]]]:
    """The namespaces of both nodes."""
    nodes = [lab.namespaces(node) for node in range(2)]
    yield nodes
    for node in nodes:
        for fd in node.values():
            os.close(fd)


@pytest.fixture
def networks(fds: list[dict[str, int]]) -> dict[Place, int]:
    return {Place(node, gpu): fds[node][f"gpu{gpu}"] for node in range(2) for gpu in range(4)}


@pytest.fixture
def pair(networks: dict[Place, int]) -> Iterator[Processes]:
    """Two processes on one node, 1 and 2, that have heard each other."""
    made = Processes(networks, {1: Place(0, 0), 2: Place(0, 1)})
    assert made.run(2 * BEAT_S) == []
    yield made
    made.close()


@contextmanager
def cluster(networks: dict[Place, int]) -> Iterator[Processes]:
    """Two processes on each of two nodes."""
    made = Processes(networks, {1: Place(0, 0), 2: Place(0, 1), 3: Place(1, 0), 4: Place(1, 1)})
    try:
        yield made
    finally:
        made.close()


def test_all_hear_each_other_within_a_node_and_between_nodes(networks: dict[Place, int]) -> None:
    with cluster(networks) as four:
        assert four.run(2 * UNHEARD_S) == []
        assert [each.silent() for each in four.beacons.values()] == [[]] * 4


def test_a_black_hole_is_reported_once_by_both_sides_and_so_is_its_end(
    pair: Processes, fds: list[dict[str, int]]
) -> None:
    last = pair.now
    with pair.drop_nvlink(fds[0]["nvswitch"], BOTH):
        new = pair.run(2.0)
        assert silences(new) == {(1, 2, NVLINK), (2, 1, NVLINK)}
        assert len(new) == 2
        # What was on its way when the path died is still read, at the next beat.
        assert all(report.since == pytest.approx(last, abs=1.01 * BEAT_S) for _, report in new)
        assert pair.beacons[1].silent() == [report for process, report in new if process == 1]
    assert recoveries(pair.run(0.5)) == {(1, 2, NVLINK), (2, 1, NVLINK)}
    assert pair.beacons[1].silent() == []


def test_it_is_reported_at_the_first_beat_after_the_time(pair: Processes, fds: list[dict[str, int]]) -> None:
    pair.run(BEAT_S)
    with pair.drop_nvlink(fds[0]["nvswitch"], BOTH):
        for process, report in pair.until_reported(within=1.0):
            assert report.since is not None
            assert SILENT_S < pair.now - report.since <= SILENT_S + 1.01 * BEAT_S, process


@pytest.mark.parametrize("way", sorted(BOTH))
def test_a_drop_one_way_is_reported_by_the_side_that_no_longer_hears(
    pair: Processes, fds: list[dict[str, int]], way: tuple[int, int]
) -> None:
    sender, receiver = way
    with pair.drop_nvlink(fds[0]["nvswitch"], {way}):
        assert silences(pair.run(1.0)) == {(receiver, sender, NVLINK)}
    assert recoveries(pair.run(0.5)) == {(receiver, sender, NVLINK)}


def test_a_dead_pcie_link_is_seen_by_neighbours_and_peers_and_heals(
    networks: dict[Place, int], fds: list[dict[str, int]]
) -> None:
    with cluster(networks) as four:
        four.run(2 * BEAT_S)
        ends = {(1, 2, PCIE), (2, 1, PCIE), (1, 3, PCIE), (3, 1, PCIE)}
        with link_down(fds[0]["net"], "pcie0"):
            four.dead = ends
            assert silences(four.run(1.0)) == ends
        # The sender's first beacon may wait for the neighbour's address, longer than a beat takes here.
        seen: set[tuple[int, int, str]] = set()
        while seen != ends:
            seen |= recoveries(four.until_reported(within=10_000.0))
        four.dead = set()
        assert four.run(1.0) == []


def test_errors_of_sending_are_silence_at_the_other_side(pair: Processes, networks: dict[Place, int]) -> None:
    with link_down(networks[Place(0, 0)], "nvl0"):  # its route goes as well: ENETUNREACH
        pair.dead = {(*way, NVLINK) for way in BOTH}
        with pytest.raises(OSError, match="unreachable"):
            pair.beacons[1]._sockets[NVLINK].sendto(b"", (nvlink_address(0, 1), PORT))
        assert silences(pair.run(1.0)) == {(1, 2, NVLINK), (2, 1, NVLINK)}


def test_partners_that_do_not_resolve_leave_room_for_the_others(
    networks: dict[Place, int], fds: list[dict[str, int]]
) -> None:
    """What is sent to them waits in the kernel for three seconds; here come more than that time's beats."""
    switch = fds[0]["nvswitch"]
    with link_down(switch, "nvl2"), link_down(switch, "nvl3"):
        three = Processes(networks, {1: Place(0, 0), 2: Place(0, 1), 3: Place(0, 2), 4: Place(0, 3)})
        three.dead = {(one, other, NVLINK) for one in three.places for other in three.places if {one, other} & {3, 4}}
        new = three.run(4.0)
        three.close()
    assert (1, 2, NVLINK) not in silences(new)
    assert {(1, 3, NVLINK), (1, 4, NVLINK)} < silences(new)


def test_one_that_was_never_heard_is_silent_only_after_a_longer_time(pair: Processes) -> None:
    pair.asleep = {2}
    pair.beacons[1].watch([Partner(7, {NVLINK: nvlink_address(0, 1)})])
    watched = pair.now
    assert pair.run(UNHEARD_S - BEAT_S) == []
    assert pair.run(3 * BEAT_S) == [(1, Report(7, NVLINK, watched))]


def test_a_beat_that_comes_late_accuses_nobody(pair: Processes) -> None:
    pair.asleep = {2}
    pair.beat()
    assert pair.beat(after=3.0) == []
    anew = pair.now
    for process, report in pair.until_reported(within=1.0):
        assert (process, report.since) == (1, anew)
        assert pair.now - anew > SILENT_S


def test_one_that_is_always_late_never_accuses(pair: Processes) -> None:
    pair.asleep = {2}
    pair.beat()
    assert [pair.beat(after=BEAT_S + LATE_S + 0.001) for _ in range(50)] == [[]] * 50


def test_a_little_lateness_is_no_excuse(pair: Processes) -> None:
    pair.asleep = {2}
    pair.beat()
    new = pair.beat(after=0.06) + pair.beat(after=0.06)
    assert silences(new) == {(1, 2, NVLINK), (1, 2, PCIE)}


def test_a_silence_that_is_known_survives_a_late_beat(pair: Processes) -> None:
    pair.asleep = {2}
    pair.until_reported(within=1.0)
    known = pair.beacons[1].silent()
    assert pair.beat(after=1.0) == []
    assert pair.beacons[1].silent() == known


def test_partners_that_stay_keep_what_is_known_of_them_and_others_are_forgotten(pair: Processes) -> None:
    pair.asleep = {2}
    assert len(pair.until_reported(within=1.0)) == 2
    pair.beacons[1].watch([*pair.partners_of(1), Partner(3, {PCIE: pcie_address(0, 2)})])
    assert {(report.process, report.path) for report in pair.beacons[1].silent()} == {(2, NVLINK), (2, PCIE)}
    assert silences(pair.run(2.0)) == {(1, 3, PCIE)}, "those that are known already are not reported again"
    pair.beacons[1].watch([])
    assert pair.beacons[1].silent() == []
    assert pair.run(1.0) == []


def test_only_beacons_of_partners_count(pair: Processes, networks: dict[Place, int]) -> None:
    good = pair.beacons[2]._beacon
    stranger = good[:-1] + bytes([good[-1] + 5])  # such as a process that had the place before
    pair.asleep = {2}
    with namespace.inside_network(networks[Place(0, 1)]):
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with other:
        for _ in range(10):
            for datagram in (b"", b"x", good[:-1], good + b"x", b"Z" + good[1:], stranger, b"y" * 1400):
                other.sendto(datagram, (nvlink_address(0, 0), PORT))
            assert readable(pair.beacons[1]._sockets[NVLINK], PATIENCE_MS)
            pair.beat()
        assert silences(pair.reports) == {(1, 2, NVLINK), (1, 2, PCIE)}
        other.sendto(good, (nvlink_address(0, 0), PORT))
        assert pair.until_reported(within=60.0) == [(1, Report(2, NVLINK, None))], "the others would have come too"


def test_a_flood_does_not_hold_up_a_beat(pair: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beacons, "_MOST", 3)
    for _ in range(4):
        pair.beacons[2].beat()
    ear = pair.beacons[1]._sockets[NVLINK]
    assert readable(ear, PATIENCE_MS)
    pair.beacons[1].beat()
    assert readable(ear, PATIENCE_MS), "some are left for the next beat"


def test_a_device_that_is_not_there_is_an_error_and_no_socket_is_left(networks: dict[Place, int]) -> None:
    place = Place(0, 2)
    ends = {NVLINK: End("nvl0", address(place, NVLINK)), PCIE: End("nvl9", address(place, PCIE))}
    with namespace.inside_network(networks[place]):
        with pytest.raises(OSError, match="No such device") as caught:
            Beacons(9, ends)
        Beacons(9, {NVLINK: ends[NVLINK]}).close()  # the port is free, although the error still holds the first
    assert caught.value.errno == errno.ENODEV

"""A rank's control plane and process groups, without a launcher: the test plays that."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from chaos.workload.reference import messages
from chaos.workload.reference.beacons import Report
from chaos.workload.reference.config import Place
from chaos.workload.reference.messages import Generation, Message, Seat, Status
from chaos.workload.reference.rank.abort import shut_connections
from chaos.workload.reference.rank.control import Control
from chaos.workload.reference.rank.group import GlooGroup, GroupBroken, GroupBuilder
from chaos.workload.reference.rendezvous import Meeting
from chaos.workload.reference.store import RendezvousStore, connect

PATIENCE = 20.0


def generation(number: int, *processes: int, port: int = 0) -> Generation:
    seats = tuple(Seat(process, Place(0, process), f"127.0.0.{10 + process}") for process in processes)
    return Generation(number, seats, "test", symptom_ns=0, detected_ns=0, store_port=port)


class Launcher:
    """A launcher, and what else a rank does with what it hears."""

    def __init__(self, folder: Path, abort: Callable[[], int] = lambda: 0) -> None:
        self.meeting = Meeting(folder / "launcher.sock")
        self._listener = self.meeting.listen()
        self._listener.settimeout(PATIENCE)
        self.abort = abort
        self.aborts: list[tuple[int, int]] = []
        self.offers: list[int] = []
        self.known: dict[int, Place] = {}
        self.alone = threading.Event()
        self.control = Control(7, self.meeting.connect, self)
        self.control.start()
        self.accept()

    def accept(self) -> None:
        """Meet the rank."""
        self._sock, _ = self._listener.accept()
        self.hello = self.await_message("hello")

    def aborted(self, generation: Generation, connections: int) -> None:
        self.aborts.append((generation.number, connections))

    def offered(self, generation: Generation) -> None:
        self.offers.append(generation.number)

    def withdrawn(self) -> None:
        self.offers.clear()

    def peers(self, places: dict[int, Place]) -> None:
        self.known = places

    def silences(self) -> list[Report]:
        return [Report(9, "pcie", 1.5)]

    def orphaned(self) -> None:
        self.alone.set()

    def publish(self, new: Generation, op: str = "generation") -> None:
        assert messages.send(self._sock, new.as_message(op))

    def send(self, message: Message) -> None:
        assert messages.send(self._sock, message)

    def await_message(self, op: str, where: Callable[[Message], bool] = lambda _: True) -> Message:
        self._sock.settimeout(PATIENCE)
        while True:
            message = messages.json.loads(self._sock.recv(messages.MAX_MESSAGE))
            if message["op"] == op and where(message):
                return message

    def await_beat(self, where: Callable[[Status], bool] = lambda _: True) -> Status:
        return Status(**self.await_message("beat", lambda beat: where(Status(**beat["status"])))["status"])

    def die(self) -> None:
        """Be gone, as a process that was killed."""
        self._listener.close()
        self._sock.close()

    def come_back(self) -> None:
        """Be the next launcher."""
        self._listener = self.meeting.listen()
        self._listener.settimeout(PATIENCE)
        self.accept()

    def close(self) -> None:
        self.control.stopping = True
        self.die()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    with contextlib.closing(Launcher(tmp_path)) as it:
        yield it


def test_the_watcher_beats_and_tells_what_the_main_thread_follows(launcher: Launcher) -> None:
    assert launcher.await_beat().followed == 0
    launcher.publish(generation(3, 1))
    assert launcher.control.next_generation() == generation(3, 1)
    assert launcher.control.enter()
    launcher.control.step_completed(41)
    beat = launcher.await_beat(lambda b: b.followed == 3 and b.steps)
    assert (beat.entered, beat.steps, beat.completed) == (1, 1, 41)
    said = launcher.await_message("beat")
    assert 0 <= time.monotonic() - said["t"] < PATIENCE
    assert messages.silences_from(launcher.await_message("beat", lambda b: b["silent"])) == {(9, "pcie"): 1.5}


def test_what_is_told_is_told_at_once_and_holds_for_the_generation(launcher: Launcher) -> None:
    launcher.control.tell(standing_by=True)
    assert launcher.await_beat(lambda b: b.standing_by)
    launcher.publish(generation(1, 1))
    launcher.control.next_generation()
    launcher.control.tell(broken="planted")
    beat = launcher.await_beat(lambda b: b.broken)
    assert (beat.broken, beat.standing_by, beat.followed) == ("planted", False, 1)
    launcher.publish(generation(2, 1))
    assert launcher.control.wait_for(lambda: False) is False
    assert not launcher.control.enter(), "its group is over"
    launcher.control.next_generation()
    assert launcher.await_beat(lambda b: b.followed == 2).broken == ""


def test_the_next_launcher_is_found_and_told_how_things_stand(launcher: Launcher) -> None:
    assert (launcher.hello["process"], launcher.hello["generation"]) == (7, None)
    launcher.publish(generation(4, 7))
    launcher.control.next_generation()
    launcher.publish(generation(5, 7, 8), "successor")
    while not launcher.offers:
        time.sleep(0.001)
    launcher.die()
    launcher.control.step_completed(12)
    launcher.control.tell(broken="while nobody listened")
    launcher.come_back()
    assert Generation.from_message(launcher.hello["generation"]) == generation(4, 7)
    assert Generation.from_message(launcher.hello["successor"]) == generation(5, 7, 8)
    beat = launcher.await_beat()
    assert (beat.followed, beat.completed, beat.broken) == (4, 12, "while nobody listened")
    launcher.publish(generation(6, 7))
    assert launcher.control.next_generation() == generation(6, 7)


def test_a_rank_that_meets_no_launcher_any_more_ends(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.workload.reference.rank.control.ORPHANED_S", 0.1)
    launcher.die()
    assert launcher.alone.wait(PATIENCE)


def test_a_successor_breaks_nothing_and_is_followed_when_all_move_over(launcher: Launcher) -> None:
    launcher.publish(generation(1, 7))
    launcher.control.next_generation()
    launcher.publish(generation(2, 7), "successor")
    while not launcher.offers:
        time.sleep(0.001)
    assert launcher.aborts == [(1, 0)]
    assert not launcher.control.given_up
    launcher.control.move_over(generation(2, 7))
    assert launcher.await_beat(lambda b: b.followed == 2)
    assert not launcher.control.given_up


def test_a_process_without_a_group_follows_what_is_formed_beside_others(launcher: Launcher) -> None:
    launcher.control.tell(standing_by=True)
    launcher.publish(generation(2, 7), "successor")
    assert launcher.control.next_generation() == generation(2, 7)
    assert launcher.offers == []


def test_an_older_generation_than_the_newest_is_nothing(launcher: Launcher) -> None:
    launcher.publish(generation(3, 7))
    launcher.control.next_generation()
    launcher.publish(generation(2, 7))
    launcher.publish(generation(4, 7), "successor")
    while not launcher.offers:
        time.sleep(0.001)
    assert not launcher.control.given_up
    assert launcher.aborts == [(3, 0)]


def test_a_sleep_ends_with_the_generation(launcher: Launcher) -> None:
    launcher.publish(generation(1, 7))
    launcher.control.next_generation()
    threading.Timer(0.02, lambda: launcher.publish(generation(2, 7))).start()
    began = time.monotonic()
    launcher.control.sleep(PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    launcher.control.next_generation()
    launcher.control.sleep(0.001)


def test_peers_are_told(launcher: Launcher) -> None:
    launcher.send(messages.peers_message([(7, Place(0, 0)), (9, Place(1, 0))]))
    while not launcher.known:
        time.sleep(0.001)
    assert launcher.known == {7: Place(0, 0), 9: Place(1, 0)}


def test_only_the_newest_generation_is_followed(launcher: Launcher) -> None:
    launcher.publish(generation(1, 1))
    launcher.publish(generation(2, 1))
    while len(launcher.aborts) < 2:
        time.sleep(0.001)
    followed = launcher.control.next_generation()
    assert followed is not None
    assert followed.number == 2


def test_connections_are_broken_at_each_new_generation_until_it_is_followed(tmp_path: Path) -> None:
    calls: list[float] = []

    def abort() -> int:
        calls.append(time.monotonic())
        return 5

    with contextlib.closing(Launcher(tmp_path, abort)) as launcher:
        launcher.publish(generation(1, 1))
        while len(calls) < 3:  # the first at once, then again at each beat: one may have opened meanwhile
            time.sleep(0.001)
        assert launcher.control.given_up
        launcher.control.next_generation()
        count = len(calls)
        launcher.await_beat(lambda b: b.followed == 1)
        launcher.await_beat()
        assert len(calls) == count
        assert launcher.aborts == [(1, 5)]


def test_waiting_ends_with_what_is_awaited_or_with_a_newer_generation(launcher: Launcher) -> None:
    control = launcher.control
    launcher.publish(generation(1, 1))
    control.next_generation()
    done: list[int] = []

    def finish() -> None:
        done.append(1)
        control.notify()

    threading.Timer(0.01, finish).start()
    assert control.wait_for(lambda: bool(done))
    launcher.publish(generation(2, 1))
    assert not control.wait_for(lambda: False)
    control.next_generation()
    launcher.send({"op": "stop"})
    assert not control.wait_for(lambda: False)
    assert control.next_generation() is None


def test_shutting_connections_wakes_a_reader_and_spares_listeners_and_unix_sockets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        client = stack.enter_context(socket.create_connection(listener.getsockname()))
        served = stack.enter_context(listener.accept()[0])
        one, two = socket.socketpair()
        stack.enter_context(one)
        stack.enter_context(two)
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append(client.recv(1)))
        reader.start()
        assert shut_connections() == 2
        reader.join(PATIENCE)
        assert read == [b""]
        assert served.recv(1) == b""
        two.sendall(b"x")
        assert one.recv(1) == b"x"
        socket.create_connection(listener.getsockname()).close()
        listener.accept()[0].close()


class Pair:
    """Two ranks' builders on one store, in this process."""

    def __init__(self, folder: Path, timeout: float) -> None:
        self.store = RendezvousStore()
        self.launchers = []
        for rank in "01":
            (folder / rank).mkdir()
            self.launchers.append(Launcher(folder / rank))
        self.builders = [
            GroupBuilder(each.control, lambda g: connect(g.store_port, g.number, 1.0), timeout)
            for each in self.launchers
        ]

    def generation(self, number: int) -> Generation:
        return generation(number, 0, 1, port=self.store.port)

    def publish(self, new: Generation, *ranks: int) -> None:
        for rank in ranks:
            self.launchers[rank].publish(new)
            while self.launchers[rank].control.next_generation() != new:
                pass

    def build(self, new: Generation) -> list[GlooGroup]:
        self.publish(new, 0, 1)
        groups: dict[int, GlooGroup] = {}
        threads = [
            threading.Thread(target=lambda r=r: groups.update({r: self.builders[r].build(new, r)})) for r in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        return [groups[0], groups[1]]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    it = Pair(tmp_path, timeout=3.0)
    yield it
    for launcher in it.launchers:
        launcher.close()


def test_a_group_sums_and_broadcasts(pair: Pair) -> None:
    zero, one = pair.build(pair.generation(1))
    assert (one.generation, one.slot, one.world) == (1, 1, 2)
    a, b = torch.tensor([1.0]), torch.tensor([2.0])
    thread = threading.Thread(target=lambda: (one.all_reduce(b), one.broadcast(b, root=0)))
    thread.start()
    zero.all_reduce(a)
    assert a.item() == 3
    zero.broadcast(torch.tensor([7.0]), root=0)
    thread.join(PATIENCE)
    assert b.item() == 7


def test_a_group_that_cannot_be_formed_is_left_when_a_newer_generation_comes(pair: Pair) -> None:
    pair.publish(pair.generation(1), 0)  # the other one never comes
    threading.Timer(0.05, lambda: pair.launchers[0].publish(pair.generation(2))).start()
    with pytest.raises(GroupBroken, match="superseded while the group was formed"):
        pair.builders[0].build(pair.generation(1), 0)
    assert [group.generation for group in pair.build(pair.generation(3))] == [3, 3]


def test_a_group_that_nobody_else_joins_is_broken_by_its_time_out(pair: Pair) -> None:
    pair.publish(pair.generation(1), 0)
    with pytest.raises(GroupBroken, match="not formed"):
        pair.builders[0].build(pair.generation(1), 0)


def test_a_collective_that_nobody_else_joins_is_left_when_a_newer_generation_comes(pair: Pair) -> None:
    zero, _ = pair.build(pair.generation(1))
    threading.Timer(0.05, lambda: pair.launchers[0].publish(pair.generation(2))).start()
    with pytest.raises(GroupBroken, match="superseded within a collective"):
        zero.all_reduce(torch.ones(4))
    pair.builders[0].discard(zero)


def test_a_collective_that_nobody_else_joins_is_broken_by_its_time_out(tmp_path: Path) -> None:
    pair = Pair(tmp_path, timeout=0.3)
    zero, _ = pair.build(pair.generation(1))
    with pytest.raises(GroupBroken, match="collective failed"):
        zero.all_reduce(torch.ones(4))
    for launcher in pair.launchers:
        launcher.close()

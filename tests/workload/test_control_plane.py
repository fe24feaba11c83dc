"""A rank's control plane and process groups, without a launcher: the test plays that."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from chaos.workload.reference import messages, store
from chaos.workload.reference.abort import shut_connections
from chaos.workload.reference.config import Place
from chaos.workload.reference.control import Control
from chaos.workload.reference.group import GlooGroup, GroupBroken, GroupBuilder
from chaos.workload.reference.messages import Generation, Message, Seat

PATIENCE = 20.0


def generation(number: int, *processes: int) -> Generation:
    seats = tuple(Seat(process, Place(0, process), f"127.0.0.{10 + process}") for process in processes)
    return Generation(number, seats, "test", 0)


class Launcher:
    """The other end of a rank's control socket."""

    def __init__(self, abort: Callable[[], int] = lambda: 0) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.aborted: list[tuple[int, int]] = []
        self.orphaned = threading.Event()

        self.control = Control(theirs, abort, lambda g, n: self.aborted.append((g.number, n)), self.orphaned.set)
        self.control.start()

    def publish(self, new: Generation) -> None:
        assert messages.send(self._sock, new.as_message())

    def stop(self) -> None:
        assert messages.send(self._sock, {"op": "stop"})

    def await_message(self, op: str, where: Callable[[Message], bool] = lambda _: True) -> Message:
        self._sock.settimeout(PATIENCE)
        while True:
            message = messages.json.loads(self._sock.recv(messages.MAX_MESSAGE))
            if message["op"] == op and where(message):
                return message

    def close(self) -> None:
        self._sock.close()
        assert self.orphaned.wait(PATIENCE)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with contextlib.closing(Launcher()) as it:
        yield it


def test_the_watcher_beats_and_tells_what_the_main_thread_follows(launcher: Launcher) -> None:
    assert launcher.await_message("beat")["gen"] == 0
    launcher.publish(generation(3, 1))
    assert launcher.control.next_generation() == generation(3, 1)
    launcher.control.step_completed()
    beat = launcher.await_message("beat", lambda b: b["gen"] == 3 and b["steps"])
    assert beat["steps"] == 1


def test_only_the_newest_generation_is_followed(launcher: Launcher) -> None:
    launcher.publish(generation(1, 1))
    launcher.publish(generation(2, 1))
    while len(launcher.aborted) < 2:
        time.sleep(0.001)
    followed = launcher.control.next_generation()
    assert followed is not None
    assert followed.number == 2


def test_connections_are_broken_at_each_new_generation_until_it_is_followed() -> None:
    calls: list[float] = []

    def abort() -> int:
        calls.append(time.monotonic())
        return 5

    with contextlib.closing(Launcher(abort)) as launcher:
        launcher.publish(generation(1, 1))
        while len(calls) < 3:  # the first at once, then again at each beat: one may have opened meanwhile
            time.sleep(0.001)
        assert launcher.control.given_up
        launcher.control.next_generation()
        count = len(calls)
        launcher.await_message("beat", lambda b: b["gen"] == 1)
        launcher.await_message("beat")
        assert len(calls) == count
        assert launcher.aborted == [(1, 5)]


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
    launcher.stop()
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

    def __init__(self, timeout: float) -> None:
        listener = store.listen()
        port = listener.getsockname()[1]
        self._served = store.serve(listener)
        self.launchers = [Launcher(), Launcher()]
        self.builders = [
            GroupBuilder(each.control, lambda: store.connect(port, 1.0), timeout) for each in self.launchers
        ]

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
def pair() -> Iterator[Pair]:
    it = Pair(timeout=3.0)
    yield it
    for launcher in it.launchers:
        launcher.close()


def test_a_group_sums_and_broadcasts(pair: Pair) -> None:
    zero, one = pair.build(generation(1, 0, 1))
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
    pair.publish(generation(1, 0, 1), 0)  # the other one never comes
    threading.Timer(0.05, lambda: pair.launchers[0].publish(generation(2, 0, 1))).start()
    with pytest.raises(GroupBroken, match="superseded while the group was formed"):
        pair.builders[0].build(generation(1, 0, 1), 0)
    assert [group.generation for group in pair.build(generation(3, 0, 1))] == [3, 3]


def test_a_group_that_nobody_else_joins_is_broken_by_its_time_out(pair: Pair) -> None:
    pair.publish(generation(1, 0, 1), 0)
    with pytest.raises(GroupBroken, match="not formed"):
        pair.builders[0].build(generation(1, 0, 1), 0)


def test_a_collective_that_nobody_else_joins_is_left_when_a_newer_generation_comes(pair: Pair) -> None:
    zero, _ = pair.build(generation(1, 0, 1))
    threading.Timer(0.05, lambda: pair.launchers[0].publish(generation(2, 0, 1))).start()
    with pytest.raises(GroupBroken, match="superseded within a collective"):
        zero.all_reduce(torch.ones(4))
    pair.builders[0].discard(zero)


def test_a_collective_that_nobody_else_joins_is_broken_by_its_time_out() -> None:
    pair = Pair(timeout=0.3)
    zero, _ = pair.build(generation(1, 0, 1))
    with pytest.raises(GroupBroken, match="collective failed"):
        zero.all_reduce(torch.ones(4))
    for launcher in pair.launchers:
        launcher.close()

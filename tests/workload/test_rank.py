"""The life of a rank, in a thread of the test, which is its launcher."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from reference_job import PATIENCE, Event

from chaos.workload.events import StepWriter, tail
from chaos.workload.reference import messages
from chaos.workload.reference.config import JobConfig, ModelShape, Place
from chaos.workload.reference.messages import Generation, Seat, Status
from chaos.workload.reference.rank.process import Rank
from chaos.workload.reference.rendezvous import Meeting
from chaos.workload.reference.store import RendezvousStore, connect
from chaos.workload.reference.training.replica import Replica
from chaos.workload.reference.zygote import Order

ME, OTHER = 7, 8


class Played:
    """A rank alone in its job, and the launcher that the test plays."""

    def __init__(self, folder: Path) -> None:
        places = [{"node": 0, "gpu": 0}]
        folders = {name: str(folder / name) for name in ("events_dir", "logs_dir", "checkpoint_dir")}
        config = JobConfig.parse(folders | {"seed": 3, "recovery": "peer", "world": places, "step_s": 0.002})
        config.events_dir.mkdir()
        meeting = Meeting(config.control_socket)
        listener = meeting.listen()
        listener.settimeout(PATIENCE)
        self.replica = Replica(ModelShape(), seed=3)
        writer = StepWriter(config.events_dir)
        writer.hello(0, 0, self.replica.hash_algorithm)
        self._store = RendezvousStore()
        rank = Rank(
            Order(ME, Place(0, 0), {}),
            config,
            self.replica,
            writer,
            meeting=meeting,
            beacons=None,
            connect=lambda generation: connect(generation.store_port, generation.number, 1.0),
        )
        self._thread = threading.Thread(target=rank.run, daemon=True)
        self._thread.start()
        self._sock, _ = listener.accept()
        self._sock.settimeout(PATIENCE)
        self._events: list[Event] = []
        self._tail = tail(config.events_dir)

    def give_seat(self, number: int, process: int) -> None:
        seats = (Seat(process, Place(0, 0), "127.0.0.10"),)
        generation = Generation(number, seats, "test", symptom_ns=1, detected_ns=1, store_port=self._store.port)
        assert messages.send(self._sock, generation.as_message())

    def await_status(self, number: int, *, standing_by: bool = False, steps: int = 0) -> Status:
        while True:
            message = messages.json.loads(self._sock.recv(messages.MAX_MESSAGE))
            if message["op"] == "beat":
                status = Status(**message["status"])
                if (status.followed, status.standing_by) == (number, standing_by) and status.steps >= steps:
                    return status

    def events(self, **fields: object) -> list[Event]:
        self._events += self._tail.poll()
        return [event for event in self._events if all(event.get(key) == value for key, value in fields.items())]

    def close(self) -> None:
        messages.send(self._sock, {"op": "stop"})
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._sock.close()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    it = Played(tmp_path)
    it.await_status(0, standing_by=True)
    yield it
    it.close()


def test_a_rank_trains_with_its_seat_and_says_how_far_it_is(played: Played) -> None:
    played.give_seat(1, ME)
    status = played.await_status(1, steps=3)
    assert status.completed >= status.steps
    assert status.entered > status.steps, "the agreement is a collective too"
    assert played.events(e="member", gen=1, rank=0, world=1)


@pytest.mark.control
def test_a_rank_that_was_replaced_is_fenced_and_what_it_holds_is_void(played: Played) -> None:
    played.give_seat(1, ME)
    played.await_status(1, steps=3)
    played.give_seat(2, OTHER)
    assert played.await_status(2, standing_by=True).completed == 0
    assert played.events(e="fenced", gen=2)
    assert (played.replica.completed, played.replica.digest()) == (0, Replica(ModelShape(), seed=3).digest())
    played.give_seat(3, ME)
    played.await_status(3, steps=1)
    assert [event["step"] for event in played.events(e="mark", what="agreed", gen=3)] == [0]


@pytest.mark.control
def test_a_generation_has_keys_of_its_own() -> None:
    """So a rank that wakes late, and forms the group that it last heard of, meets nobody of a newer one."""
    store = RendezvousStore()
    connect(store.port, 1, 1.0).set("rank 0", "here")
    assert not connect(store.port, 2, 1.0).check(["rank 0"])
    assert connect(store.port, 1, 1.0).check(["rank 0"])
    store.forget(1)
    assert not connect(store.port, 1, 1.0).check(["rank 0"])

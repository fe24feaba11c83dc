"""The launcher's judgement about real processes that only pretend to be ranks."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.workload.reference import messages
from chaos.workload.reference.config import JobConfig
from chaos.workload.reference.placement import placement_for
from chaos.workload.reference.poller import Poller
from chaos.workload.reference.supervisor import FRUITLESS, HOPELESS, Supervisor
from chaos.workload.reference.workers import Worker, Workers
from chaos.workload.reference.zygote import CONTROL, Order, Zygote

Act = Callable[["Pretender", messages.Message], int | None]


class Pretender:
    """A process that is ready at once, beats, and does with each message what it is told to."""

    def __init__(self, order: Order) -> None:
        self.number = order.process
        self._sock = socket.socket(fileno=order.fds[CONTROL])
        self.followed = 0

    def say(self, op: str, **fields: Any) -> None:
        messages.send(self._sock, {"op": op} | fields)

    def run(self, act: Act) -> int:
        self.say("ready")
        self._sock.settimeout(0.02)
        while True:
            try:
                data = self._sock.recv(messages.MAX_MESSAGE)
            except TimeoutError:
                data = None
            if data == b"":
                return 3
            if data is not None:
                message = messages.json.loads(data)
                code = 0 if message["op"] == "stop" else act(self, message)
                if code is not None:
                    return code
            self.say("beat", gen=self.followed, steps=0)


def configuration(folder: Path, **config: Any) -> JobConfig:
    """Of a job of two ranks, with its folders below ``folder``."""
    folders = {name: str(folder / name) for name in ("events_dir", "logs_dir", "checkpoint_dir")}
    world = {"world": [{"node": 0, "gpu": 0}, {"node": 0, "gpu": 1}], "recovery": "checkpoint", "seed": 1}
    return JobConfig.parse(folders | world | config)


def supervise(folder: Path, become: Callable[[Order], int], speed: float = 1.0, **config: Any) -> int:
    """Run a job of two ranks with a clock that is ``speed`` times as fast."""
    parsed = configuration(folder, **config)
    zygote = Zygote.fork(become)
    return Supervisor(parsed, zygote, placement_for(parsed), Poller(), lambda: time.monotonic() * speed).run()


def follow(rank: Pretender, message: messages.Message) -> None:
    rank.followed = message["number"]


def test_a_job_is_done_when_every_member_is_done_in_the_newest_generation(tmp_path: Path) -> None:
    def act(rank: Pretender, message: messages.Message) -> None:
        follow(rank, message)
        rank.say("done", gen=rank.followed)

    assert supervise(tmp_path, lambda order: Pretender(order).run(act)) == 0


def test_a_job_whose_processes_never_get_ready_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "launcher"):
        assert supervise(tmp_path, lambda _: 7, speed=20) == 1
    assert f"{HOPELESS} processes in a row died on node 0 GPU" in caplog.text
    assert "exit code 7" in caplog.text


def test_generations_without_progress_end_the_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def act(rank: Pretender, message: messages.Message) -> None:
        follow(rank, message)
        rank.say("broken", gen=rank.followed, why="planted")

    with caplog.at_level(logging.INFO, "launcher"):
        assert supervise(tmp_path, lambda order: Pretender(order).run(act)) == 1
    assert f"{FRUITLESS} generations in a row completed no step; the last one: planted" in caplog.text


def test_a_main_thread_that_does_not_follow_is_killed_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def act(rank: Pretender, message: messages.Message) -> None:
        if rank.number != 2:  # that one beats on, but its main thread is stuck
            follow(rank, message)
        if message["number"] == 2:
            rank.say("done", gen=2)

    with caplog.at_level(logging.INFO, "launcher"):
        assert supervise(tmp_path, lambda order: Pretender(order).run(act)) == 0
    assert "process 2 (node 0 GPU 1) is killed: its main thread did not follow generation 1" in caplog.text


def test_a_member_that_dies_is_replaced_by_a_new_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def act(rank: Pretender, message: messages.Message) -> int | None:
        follow(rank, message)
        if message["number"] == 1:
            return 9 if rank.number == 1 else None
        rank.say("done", gen=rank.followed)
        return None

    with caplog.at_level(logging.INFO, "launcher"):
        assert supervise(tmp_path, lambda order: Pretender(order).run(act)) == 0
    assert "generation 2 (process 1 (node 0 GPU 0) died): 0: node 0 GPU 0, 1: node 0 GPU 1" in caplog.text


def test_a_zygote_that_dies_ends_the_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def become(order: Order) -> int:
        import os  # noqa: PLC0415
        import signal  # noqa: PLC0415

        os.kill(os.getppid(), signal.SIGKILL)
        return 0

    with caplog.at_level(logging.INFO, "launcher"):
        assert supervise(tmp_path, become) == 1
    assert "the zygote has died" in caplog.text


def test_a_process_that_is_reaped_already_can_still_be_killed(tmp_path: Path) -> None:
    """The zygote may have reaped it before the launcher has read of its death."""
    config = configuration(tmp_path)
    zygote, poller = Zygote.fork(lambda _: 0), Poller()
    died: list[Worker] = []
    workers = Workers(
        zygote,
        placement_for(config),
        poller,
        on_message=lambda *_: None,
        on_death=died.append,
        on_end=lambda: None,
    )
    worker = workers.start(config.world[0])
    assert worker is not None
    while worker.pidfd is None:
        poller.wait(1.0)
    with socket.socket(fileno=os.dup(zygote.socket.fileno())) as reports:
        reports.recv(1, socket.MSG_PEEK)  # its Exited: reaped, while nothing has listened to its pidfd
    workers.kill(worker, "a test wants it")
    while not died:
        poller.wait(1.0)
    workers.close()

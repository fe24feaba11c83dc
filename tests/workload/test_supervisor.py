"""The launcher's judgement about real processes that only pretend to be ranks."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reference_job import PATIENCE, alive_pid

from chaos.lab import namespace
from chaos.workload.reference import messages
from chaos.workload.reference.config import JobConfig
from chaos.workload.reference.launcher.supervisor import FRUITLESS, HOPELESS, REPLACE_S, Supervisor
from chaos.workload.reference.launcher.workers import Worker, Workers
from chaos.workload.reference.messages import Message, Status
from chaos.workload.reference.placement import placement_for
from chaos.workload.reference.poller import Poller
from chaos.workload.reference.rendezvous import Meeting
from chaos.workload.reference.store import RendezvousStore
from chaos.workload.reference.zygote import LAUNCHER_DEATHS, Order, Zygote, ZygoteClient

Act = Callable[["Pretender", Message], int | None]


class Pretender:
    """A process that is ready at once, beats, and does with each message what it is told to."""

    def __init__(self, order: Order, folder: Path) -> None:
        self.number = order.process
        self.heard: Message | None = None
        self.status = Status(standing_by=True)
        self._meeting = Meeting(folder / "events_dir" / "launcher.sock")
        self._meet()

    def _meet(self) -> None:
        while (sock := self._meeting.connect()) is None:
            time.sleep(0.01)
        self._sock = sock
        self._sock.settimeout(0.02)
        messages.send(sock, {"op": "hello", "process": self.number, "generation": self.heard, "successor": None})

    def say(self, **fields: Any) -> None:
        self.status = replace(self.status, **fields)
        messages.send(self._sock, messages.beat_message(self.status, [], time.monotonic()))

    def run(self, act: Act) -> int:
        while True:
            self.say()
            try:
                data = self._sock.recv(messages.MAX_MESSAGE)
            except TimeoutError:
                continue
            except ConnectionError:
                data = b""
            if not data:
                self._meet()
                continue
            message = json.loads(data)
            if message["op"] == "generation":
                self.heard = message
            code = 0 if message["op"] == "stop" else act(self, message)
            if code is not None:
                return code


def configuration(folder: Path, **config: Any) -> JobConfig:
    """Of a job of two ranks, with its folders below ``folder``."""
    folders = {name: str(folder / name) for name in ("events_dir", "logs_dir", "checkpoint_dir")}
    world = {"world": [{"node": 0, "gpu": 0}, {"node": 0, "gpu": 1}], "recovery": "checkpoint", "seed": 1}
    (folder / "events_dir").mkdir(exist_ok=True)
    return JobConfig.parse(folders | world | config)


def supervise(
    folder: Path,
    become: Callable[[Order], int],
    speed: float = 1.0,
    launch: Callable[[Supervisor], int] = Supervisor.run,
    **config: Any,
) -> tuple[int, str]:
    """Run a job of two ranks with a clock that is ``speed`` times as fast; its exit code and what its processes said.

    In a process of its own: a zygote has one thread.
    """
    parsed = configuration(folder, **config)

    def become_launcher(zygote: ZygoteClient) -> int:
        supervisor = Supervisor(
            parsed,
            zygote,
            placement_for(parsed),
            Poller(),
            RendezvousStore(),
            clock=lambda: time.monotonic() * speed,
        )
        return launch(supervisor)

    said = folder / "said"
    return run_job(said, become, become_launcher), said.read_text(encoding="utf-8")


def run_job(said: Path, become: Callable[[Order], int], become_launcher: Callable[[ZygoteClient], int]) -> int:
    """Run a zygote in a process of its own, whose words go to a file; returns its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            namespace.die_with_parent(signal.SIGKILL)
            _say_to(said)
            code = Zygote(become, become_launcher).serve()
        finally:
            os._exit(code)
    return _end_of(pid)


def _end_of(pid: int) -> int:
    """The exit code of a job; minus the signal's number for one that had to be killed."""
    pidfd = os.pidfd_open(pid)
    waiter = select.poll()
    waiter.register(pidfd, select.POLLIN)
    if not waiter.poll(PATIENCE * 1000 / 2):
        os.kill(pid, signal.SIGKILL)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _say_to(file: Path) -> None:
    """Let everything that is logged or printed go to a file."""
    import logging  # noqa: PLC0415

    output = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=os.fdopen(2, "w", buffering=1), force=True)


def follow(rank: Pretender, message: Message) -> None:
    """Follow the generation that a message announces."""
    if message["op"] == "generation":
        seated = rank.number in [seat["process"] for seat in message["seats"]]
        rank.status = Status(followed=message["number"], standing_by=not seated)


def test_a_job_is_done_when_every_member_is_done_in_the_newest_generation(tmp_path: Path) -> None:
    def act(rank: Pretender, message: Message) -> None:
        follow(rank, message)
        rank.say(done=True)

    assert supervise(tmp_path, lambda order: Pretender(order, tmp_path).run(act))[0] == 0


def test_a_job_whose_processes_never_get_ready_ends(tmp_path: Path) -> None:
    code, said = supervise(tmp_path, lambda _: 7, speed=20)
    assert code == 1
    assert f"{HOPELESS} processes in a row died on node 0 GPU" in said
    assert "exit code 7" in said


def test_generations_without_progress_end_the_job(tmp_path: Path) -> None:
    def act(rank: Pretender, message: Message) -> None:
        follow(rank, message)
        rank.say(broken="planted")

    code, said = supervise(tmp_path, lambda order: Pretender(order, tmp_path).run(act))
    assert code == 1
    assert f"{FRUITLESS} generations in a row completed no step; the last one: planted" in said


def test_a_main_thread_that_does_not_follow_is_killed_and_replaced(tmp_path: Path) -> None:
    def act(rank: Pretender, message: Message) -> None:
        if rank.number != 2:  # that one beats on, but its main thread is stuck
            follow(rank, message)
        if message.get("number") == 2:
            rank.say(done=True)

    code, said = supervise(tmp_path, lambda order: Pretender(order, tmp_path).run(act), recovery="peer")
    assert code == 0
    assert "process 2 (node 0 GPU 1) is killed: its main thread is stuck" in said


def test_a_main_thread_that_keeps_the_others_waiting_is_killed_and_replaced(tmp_path: Path) -> None:
    """It follows and it beats; what gives it away is the collective that it does not enter."""

    def act(rank: Pretender, message: Message) -> None:
        follow(rank, message)
        if message.get("number") == 1:
            for step in range(1, 4):
                time.sleep(0.02)
                rank.say(entered=step, steps=step)
            if rank.number != 2:
                rank.say(entered=4, inside=True)
        elif message.get("number") == 2:
            rank.say(done=True)

    code, said = supervise(tmp_path, lambda order: Pretender(order, tmp_path).run(act), recovery="peer")
    assert code == 0
    assert "the main thread of process 2 (node 0 GPU 1) is stuck" in said
    assert "generation 2 (the main thread of process 2" in said


def test_a_member_that_dies_is_replaced_by_a_new_process(tmp_path: Path) -> None:
    def act(rank: Pretender, message: Message) -> int | None:
        follow(rank, message)
        if message.get("number") == 1:
            return 9 if rank.number == 1 else None
        rank.say(done=rank.status.followed == 2)
        return None

    code, said = supervise(tmp_path, lambda order: Pretender(order, tmp_path).run(act))
    assert code == 0
    assert "generation 2 (process 1 (node 0 GPU 0) died): 0: node 0 GPU 0 at" in said


def test_a_newcomer_that_fails_is_left_out_and_tried_again_after_a_pause(tmp_path: Path) -> None:
    """The job has shrunk, since nobody could take the seat in time."""
    offers: list[int] = []

    def act(rank: Pretender, message: Message) -> int | None:
        follow(rank, message)
        if message["op"] == "generation" and not rank.status.standing_by:
            rank.say(steps=1, completed=1)
        if message.get("number") == 1 and rank.number == 2:
            return 9
        if message["op"] == "successor":
            offers.append(message["number"])
            first = len(offers) == 1
            if rank.number == 3:
                rank.status = Status(followed=message["number"])
                rank.say(broken="planted" if first else "", done=not first)
            elif not first:
                rank.status = Status(followed=message["number"], completed=2)
                rank.say(steps=1, done=True)
        return None

    def become(order: Order) -> int:
        if order.process > 2:
            time.sleep(REPLACE_S + 0.2)
        return Pretender(order, tmp_path).run(act)

    code, said = supervise(tmp_path, become, recovery="peer")
    assert code == 0
    assert "1 of 2 ranks" in said
    assert "failed: planted" in said
    assert said.count("joins)") == 2
    assert "goes on without a gap" in said


def die_once(folder: Path, when: str) -> Callable[[Supervisor], int]:
    """A launcher that is killed, once, when a file appears; the next ones are ordinary."""

    def launch(supervisor: Supervisor) -> int:
        if not (folder / "died").exists():
            signal.signal(signal.SIGALRM, lambda *_: _die_when(folder, when))
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        return supervisor.run()

    return launch


def _die_when(folder: Path, when: str) -> None:
    if (folder / when).exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.control
def test_a_new_launcher_takes_over_a_running_job_as_it_is(tmp_path: Path) -> None:
    """No rank notices: there is no new generation."""

    def act(rank: Pretender, message: Message) -> None:
        follow(rank, message)
        if message["op"] == "generation":
            rank.say(steps=1, completed=1)
            (tmp_path / f"rank {rank.number}").touch()
        if len(list(tmp_path.glob("rank *"))) == 2:
            (tmp_path / "running").touch()
        if (tmp_path / "died").exists():
            rank.say(done=True)

    def become(order: Order) -> int:
        rank = Pretender(order, tmp_path)
        meet = rank._meet

        def meet_again() -> None:
            meet()
            rank.say(done=True)

        rank._meet = meet_again  # type: ignore[method-assign]
        return rank.run(act)

    code, said = supervise(tmp_path, become, launch=die_once(tmp_path, "running"), recovery="peer")
    assert code == 0
    assert "the launcher died (signal 9): the ranks go on, and a new one is started" in said
    assert "took over generation 1" in said
    assert "generation 2" not in said


@pytest.mark.control
def test_a_new_launcher_replaces_a_rank_that_died_while_there_was_none(tmp_path: Path) -> None:
    def act(rank: Pretender, message: Message) -> int | None:
        follow(rank, message)
        if message.get("number") == 1:
            rank.say(steps=1, completed=1)
            if rank.number == 2:
                (tmp_path / "running").touch()
                while not (tmp_path / "died").exists():
                    time.sleep(0.001)
                return 9
        elif message["op"] == "generation":
            rank.say(completed=1, done=True)
        return None

    code, said = supervise(
        tmp_path,
        lambda order: Pretender(order, tmp_path).run(act),
        launch=die_once(tmp_path, "running"),
        recovery="peer",
    )
    assert code == 0
    assert "generation 2 (process 2" in said


def test_launchers_that_die_one_after_the_other_end_the_job(tmp_path: Path) -> None:
    def launch(_: Supervisor) -> int:
        raise RuntimeError("planted")

    code, said = supervise(tmp_path, lambda _: 0, launch=launch)
    assert code == 1
    assert f"{LAUNCHER_DEATHS[0]} launchers died within 10 s" in said


@pytest.mark.control
def test_a_job_that_has_lost_every_replica_does_not_begin_anew(tmp_path: Path) -> None:
    def act(rank: Pretender, message: Message) -> int | None:
        follow(rank, message)
        if message["op"] == "generation":
            rank.say(steps=5, completed=5)
            time.sleep(0.1)
            return 9
        return None

    code, said = supervise(tmp_path, lambda order: Pretender(order, tmp_path).run(act), recovery="peer")
    assert code == 1
    assert "job ends: no replica of the state is left" in said


def test_a_zygote_that_dies_takes_all_with_it(tmp_path: Path) -> None:
    def become(order: Order) -> int:
        (tmp_path / f"rank{order.process}").write_text(str(os.getpid()), encoding="ascii")
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(PATIENCE)
        return 0

    code, _ = supervise(tmp_path, become)
    assert code == -signal.SIGKILL
    end = time.monotonic() + PATIENCE
    for file in tmp_path.glob("rank*"):
        while alive_pid(int(file.read_text(encoding="ascii"))):
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_process_that_is_reaped_already_can_still_be_killed(tmp_path: Path) -> None:
    """The zygote may have reaped it before the launcher has read of its death."""
    config = configuration(tmp_path)

    def launch(zygote: ZygoteClient) -> int:
        poller, died = Poller(), list[Worker]()
        workers = Workers(
            zygote,
            placement_for(config),
            poller,
            Meeting(config.control_socket).listen(),
            on_message=lambda *_: None,
            on_death=died.append,
            on_end=lambda *_: None,
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
        zygote.outcome(42)
        return 0

    said = tmp_path / "said"
    assert run_job(said, lambda _: 0, launch) == 42, said.read_text(encoding="utf-8")

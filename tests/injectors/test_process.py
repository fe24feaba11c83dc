"""``process.signal`` on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_help import eventually

from injectors import kernel
from injectors.contract import InjectorError, Order, Target, UndoRecord
from injectors.process import Signal, SignalParams

BUSY = "print('ready', flush=True)\nwhile True: pass"
HANDLES = (
    "import signal, time; signal.signal(15, lambda *_: None); print('ready', flush=True)\nwhile True: time.sleep(1)"
)
IGNORES = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(1000)"
BLOCKS = "import signal, time; signal.pthread_sigmask(0, [15]); print('ready', flush=True); time.sleep(1000)"
IDLE = "print('ready', flush=True); import time; time.sleep(1000)"

Start = Callable[[str], "subprocess.Popen[bytes]"]


def process_of(pid: int) -> dict[str, int]:
    ticks = kernel.start_ticks(pid)
    assert ticks is not None
    return {"pid": pid, "start": ticks, "pidns": Path("/proc/self/ns/pid").stat().st_ino}


def ordered(name: str, target: dict[str, int] | None, duration: float | None = None) -> Order:
    return Order("f1", SignalParams(name), Target(node=0, rank=3, process=target), duration)


def prepared(name: str, pid: int, duration: float | None = None) -> tuple[Signal, UndoRecord]:
    injector = Signal()
    record = injector.plan(ordered(name, process_of(pid), duration))
    record.boot = kernel.boot_id()
    injector.prepare(record)
    return injector, record


def test_kill(start: Start) -> None:
    child = start(IDLE)
    injector, record = prepared("KILL", child.pid)
    assert injector.witness(record, "before", 0.1).effective is False
    injector.inject(record)
    during = injector.witness(record, "during", 20)
    assert during.effective is True, during
    assert child.wait() == -signal.SIGKILL
    injector.undo(record)
    assert injector.residue(record) == []
    assert injector.witness(record, "after", 0.1).effective is False


def test_stop_holds_a_busy_process_until_it_is_continued(start: Start) -> None:
    child = start(BUSY)
    injector, record = prepared("STOP", child.pid, 60.0)
    assert injector.witness(record, "before", 0.1).effective is False
    injector.inject(record)
    eventually(lambda: kernel.stat_fields(child.pid)[0] == "T", "the stopped process")
    during = injector.witness(record, "during", 0.1)
    assert during.effective is True, during
    assert during.numbers == {"state": "T", "cpu_ticks": 0}
    assert injector.residue(record) == [f"process {child.pid} (rank 3) is still stopped"]
    stranger, again = Signal(), UndoRecord.from_dict(record.as_dict())
    stranger.undo(again)
    stranger.undo(again)
    eventually(lambda: stranger.residue(again) == [], "the running process")
    assert stranger.witness(again, "after", 0.1).effective is False
    assert child.poll() is None


def test_a_stopped_process_that_dies_leaves_nothing(start: Start) -> None:
    child = start(IDLE)
    injector, record = prepared("STOP", child.pid, 60.0)
    injector.inject(record)
    child.kill()
    child.wait()
    injector.undo(record)
    assert injector.residue(record) == []
    assert injector.witness(record, "after", 0.1).effective is False
    assert injector.witness(record, "during", 0.1).effective is None


def test_term_ends_what_does_not_handle_it(start: Start) -> None:
    child = start(IDLE)
    injector, record = prepared("TERM", child.pid)
    injector.inject(record)
    assert injector.witness(record, "during", 20).effective is True
    assert child.wait() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("script", "effective", "text"),
    [
        (HANDLES, True, "SIGTERM was delivered; process {} handles it and runs on"),
        (IGNORES, False, "process {} ignores SIGTERM"),
        (BLOCKS, False, "SIGTERM is still pending at process {}"),
    ],
)
def test_term_is_witnessed_by_what_the_process_does_with_it(
    start: Start, script: str, effective: bool, text: str
) -> None:
    child = start(script)
    injector, record = prepared("TERM", child.pid)
    injector.inject(record)
    pending = text.startswith("SIGTERM is still")
    eventually(lambda: pending or "pending" not in injector.witness(record, "during", 0.01).text, "its delivery")
    during = injector.witness(record, "during", 0.01)
    assert (during.effective, during.text) == (effective, text.format(child.pid))
    assert child.poll() is None


def test_a_wrong_start_time_is_another_process(start: Start) -> None:
    child = start(IDLE)
    wanted = process_of(child.pid)
    with pytest.raises(InjectorError, match=f"the process {child.pid} of rank 3 has gone"):
        Signal().plan(ordered("KILL", wanted | {"start": wanted["start"] - 1}))
    assert child.poll() is None


def test_a_process_that_has_gone_is_refused(start: Start) -> None:
    child = start(IDLE)
    wanted = process_of(child.pid)
    injector = Signal()
    record = injector.plan(ordered("KILL", wanted))
    child.kill()
    child.wait()
    with pytest.raises(InjectorError, match="has gone"):
        injector.prepare(record)
    with pytest.raises(InjectorError, match="has gone"):
        Signal().plan(ordered("KILL", wanted))


def test_a_process_that_ends_before_the_signal_is_told(start: Start) -> None:
    child = start(IDLE)
    injector, record = prepared("KILL", child.pid)
    child.kill()
    child.wait()
    with pytest.raises(InjectorError, match="ended by itself before the signal"):
        injector.inject(record)


def test_an_id_that_was_given_to_another_is_never_hit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record names a process that has gone; its id now belongs to an innocent one."""
    child = start(IDLE)
    former = process_of(child.pid)
    former["start"] -= 100
    record = UndoRecord.of(Signal(), ordered("STOP", former, 60.0), {"process": former, "state": "S"})
    record.boot = kernel.boot_id()
    with pytest.raises(InjectorError, match="its id was given to another"):
        Signal().prepare(record)
    os.kill(child.pid, signal.SIGSTOP)
    eventually(lambda: kernel.stat_fields(child.pid)[0] == "T", "the innocent process, stopped by somebody else")
    assert Signal().residue(record) == []
    Signal().undo(record)
    assert kernel.stat_fields(child.pid)[0] == "T", "a SIGCONT would have hit it"


def test_of_another_boot_nothing_is_left(start: Start) -> None:
    child = start(IDLE)
    injector, record = prepared("STOP", child.pid, 60.0)
    injector.inject(record)
    eventually(lambda: kernel.stat_fields(child.pid)[0] == "T", "the stopped process")
    record.boot = "another"
    injector.undo(record)
    assert injector.residue(record) == []
    assert kernel.stat_fields(child.pid)[0] == "T"


@pytest.mark.control
def test_nobody_hits_itself_or_what_is_above() -> None:
    pid = os.getpid()
    while pid > 0:
        with pytest.raises(InjectorError, match=f"process {pid} is this agent or above it: it is never hit"):
            Signal().plan(ordered("KILL", process_of(pid)))
        pid = int(kernel.stat_fields(pid)[1])


@pytest.mark.control
@pytest.mark.parametrize("script", [IDLE, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {IDLE!r}])"])
def test_what_the_agent_has_started_is_never_hit(script: str) -> None:
    """Its guardian, that is; and what its children have started."""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            states = {pid: kernel.stat_fields(pid) for pid in kernel.processes()}
            family = [pid for pid, fields in states.items() if fields and int(fields[3]) == child.pid]  # by session
            for pid in family:
                with pytest.raises(InjectorError, match=f"process {pid} was started by this agent, such as its"):
                    Signal().plan(ordered("KILL", process_of(pid)))
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    assert len(family) == (1 if script == IDLE else 2)


def test_the_process_itself_is_what_is_locked(start: Start) -> None:
    child = start(IDLE)
    there = process_of(child.pid)
    _, record = prepared("KILL", child.pid)
    assert record.devices == [f"process:{there['pidns']}:{child.pid}:{there['start']}"]
    assert Signal().strays(Target(node=0)) == [], "it bears no mark"


def test_another_pid_namespace_is_refused(start: Start) -> None:
    child = start(IDLE)
    with pytest.raises(InjectorError, match="the process of rank 3 is in PID namespace 1, this agent in"):
        Signal().plan(ordered("KILL", process_of(child.pid) | {"pidns": 1}))


def test_a_rank_without_a_process_is_refused() -> None:
    with pytest.raises(InjectorError, match="no process of rank 3 is known yet"):
        Signal().plan(ordered("KILL", None))


def test_a_launcher_is_called_so_and_continued_like_any_rank(start: Start) -> None:
    child = start(BUSY)
    launcher = Target(role="launcher", process=process_of(child.pid))
    injector = Signal()
    record = injector.plan(Order("f1", SignalParams("STOP"), launcher, 60.0))
    record.boot = kernel.boot_id()
    injector.prepare(record)
    injector.inject(record)
    eventually(lambda: kernel.stat_fields(child.pid)[0] == "T", "the stopped launcher")
    assert injector.witness(record, "during", 0.1).effective is True
    assert injector.residue(record) == [f"process {child.pid} (the launcher) is still stopped"]
    stranger, again = Signal(), UndoRecord.from_dict(record.as_dict())
    stranger.undo(again)
    eventually(lambda: stranger.residue(again) == [], "the running launcher")
    assert child.poll() is None


def test_a_launcher_that_is_not_there_is_called_so(start: Start) -> None:
    child = start(IDLE)
    there = process_of(child.pid)
    for wanted, told in (
        (None, "no process of the launcher is known yet: it has not said that it runs"),
        (there | {"pidns": 1}, "the process of the launcher is in PID namespace 1, this agent in"),
        (there | {"start": 1}, f"the process {child.pid} of the launcher has gone"),
    ):
        with pytest.raises(InjectorError, match=told):
            Signal().plan(Order("f1", SignalParams("KILL"), Target(role="launcher", process=wanted), None))
    assert child.poll() is None


def test_a_record_from_before_there_were_roles_is_undone(start: Start) -> None:
    child = start(IDLE)
    injector, record = prepared("STOP", child.pid, 60.0)
    injector.inject(record)
    eventually(lambda: kernel.stat_fields(child.pid)[0] == "T", "the stopped process")
    del record.target["role"]
    assert injector.residue(record) == [f"process {child.pid} (rank 3) is still stopped"]
    injector.undo(record)
    eventually(lambda: injector.residue(record) == [], "the running process")


def test_what_fits_to_a_signal() -> None:
    assert SignalParams("STOP").problem(None) == "a STOP needs `for:`, the time after which the process is continued"
    assert SignalParams("STOP").problem(1.0) is None
    assert SignalParams("KILL").problem(None) is None
    assert "`for:` belongs to STOP alone" in str(SignalParams("KILL").problem(1.0))
    assert Signal().support(SignalParams("KILL"), Target()).possible


def test_a_command_name_may_hold_spaces_and_brackets() -> None:
    script = "import time; open('/proc/self/comm', 'w').write('a) S 1 ('); print('ready', flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert int(kernel.stat_fields(child.pid)[1]) == os.getpid()
        child.kill()


# -- negative controls ------------------------------------------------------------------------------------------------


@pytest.mark.control
@pytest.mark.parametrize("name", ["KILL", "STOP", "TERM"])
def test_a_signal_that_was_not_sent_is_not_witnessed(start: Start, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    child = start(BUSY if name == "STOP" else IDLE)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)
    injector, record = prepared(name, child.pid, 60.0 if name == "STOP" else None)
    injector.inject(record)
    during = injector.witness(record, "during", 0.1)
    assert during.effective is False, during
    assert child.poll() is None


@pytest.mark.control
def test_a_continuation_that_was_not_sent_is_found_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    child = start(IDLE)
    injector, record = prepared("STOP", child.pid, 60.0)
    injector.inject(record)
    eventually(lambda: kernel.stat_fields(child.pid)[0] == "T", "the stopped process")
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)
    injector.undo(record)
    assert injector.residue(record) == [f"process {child.pid} (rank 3) is still stopped"]
    assert injector.witness(record, "after", 0.1).effective is True

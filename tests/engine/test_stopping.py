"""A run that is to end begins to undo at once, whatever hangs, blocks or has vanished.

What is measured is the time from the signal to the stamped end of the fault on its node. The bound is generous, for a
busy machine; ``python -m bench.stopping`` tells the real figure.
"""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.engine.ledger import Ledger
from tests.engine.runs import BLACKHOLE, Finished, Started, document, processes, run

pytestmark = [pytest.mark.lab, pytest.mark.train, pytest.mark.usefixtures("nothing_left")]

BOUND_NS = 1_000_000_000
LONG = BLACKHOLE.format(length="60s")


def undone_in_time(finished: Finished, since_ns: int) -> None:
    """The fault ended soon after an instant, early, and everything is proven undone."""
    (ended,) = finished.faults("ended")
    assert ended["early"] is True
    assert ended["ended_ns"] - since_ns < BOUND_NS
    assert [event["residue"] for event in finished.faults("undone")] == [[]]
    assert finished.card["cleanup"]["verdict"] == "clean"
    assert "Traceback" not in (finished.output or "")


def stopped(started: Started, stop: Callable[[], object]) -> tuple[Finished, int]:
    """Wait for the fault's effect, end the run, and wait for its end."""
    started.wait_for("phase", "during")  # the witness has seen the effect
    since = time.monotonic_ns()
    stop()
    return started.finish(), since


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_undoes_at_once_and_further_ones_cut_nothing_short(tmp_path: Path, number: signal.Signals) -> None:
    """CASES 1, 2, 4 and 7."""
    started = Started(document(tmp_path, LONG), tmp_path / "runs")

    def storm() -> None:
        started.signal(number)
        while started.process.poll() is None:  # to the very end, while the reports are rendered too
            started.signal(signal.SIGINT)
            started.signal(number)
            time.sleep(0.001)

    finished, since = stopped(started, storm)
    assert finished.code == 4, finished.output
    # Two that come together are heard in any order.
    assert any(f"{each.name} received" in finished.card["reason"] for each in (number, signal.SIGINT))
    undone_in_time(finished, since)
    assert (finished.folder / "scorecard.html").exists()


def test_the_undo_does_not_wait_for_a_probe_that_hangs(tmp_path: Path) -> None:
    """CASES 23: a command that sleeps and a server that never answers, as a guard and during the fault."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        path = document(tmp_path, LONG)
        text = path.read_text().replace(
            "    - {probe: workload.loss, is: finite}\n",
            "    - {probe: workload.loss, is: finite}\n"
            f"    - {{probe: http, url: '{url}', value: status, is: 200, timeout: 60s, when: [during]}}\n",
        )
        path.write_text(
            text + "guards: {stop_if: {probe: command, argv: [sleep, '60'], value: exit_code, is: 0, timeout: 60s, "
            "for: 100ms}}\n"
        )
        started = Started(path, tmp_path / "runs")
        finished, since = stopped(started, lambda: started.signal(signal.SIGTERM))
    assert finished.code == 4, finished.output
    undone_in_time(finished, since)


def test_the_undo_does_not_wait_for_a_workload_that_stands_still(tmp_path: Path) -> None:
    started = Started(document(tmp_path, LONG), tmp_path / "runs")

    def stop() -> None:
        for pid in processes():
            command = Path(f"/proc/{pid}/cmdline")
            if command.exists() and b"chaos.workload" in command.read_bytes():
                os.kill(pid, signal.SIGSTOP)
        started.signal(signal.SIGTERM)

    finished, since = stopped(started, stop)
    assert finished.code == 4, finished.output
    undone_in_time(finished, since)


def full_pipe() -> tuple[int, int]:
    """A pipe into which nothing more fits."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    return reader, writer


def test_output_that_nobody_reads_holds_nothing_up(tmp_path: Path) -> None:
    """CASES 5."""
    reader, writer = full_pipe()
    started = Started(document(tmp_path, LONG), tmp_path / "runs", stdout=writer, stderr=writer)
    os.close(writer)
    finished, since = stopped(started, lambda: started.signal(signal.SIGTERM))
    os.close(reader)
    assert finished.code == 4
    undone_in_time(finished, since)


def test_a_reader_that_has_gone_ends_the_run_as_a_hangup_does(tmp_path: Path) -> None:
    """CASES 2."""
    reader, writer = os.pipe()
    started = Started(document(tmp_path, LONG), tmp_path / "runs", stdout=writer, stderr=writer)
    os.close(writer)
    finished, since = stopped(started, lambda: os.close(reader))
    assert finished.code == 4
    assert "the terminal has gone" in finished.card["reason"]
    undone_in_time(finished, since)


def test_a_terminal_that_vanishes_ends_the_run(tmp_path: Path) -> None:
    """CASES 2."""
    master, slave = pty.openpty()
    started = Started(document(tmp_path, LONG), tmp_path / "runs", stdout=slave, stderr=slave)
    os.close(slave)
    finished, since = stopped(started, lambda: os.close(master))
    assert finished.code == 4
    assert "the terminal has gone" in finished.card["reason"]
    undone_in_time(finished, since)


def test_a_run_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        started = Started(
            document(tmp_path, BLACKHOLE.format(length="300ms")),
            tmp_path / "runs",
            before=["nohup"],
            stdout=out.fileno(),
        )
        started.wait_for("phase", "during")
        started.signal(signal.SIGHUP)
        finished = started.finish()
    assert finished.code in (0, 1, 3)
    assert finished.card["verdict"] != "aborted"


def test_closed_standard_streams_harm_nothing(tmp_path: Path) -> None:
    started = Started(
        document(tmp_path, BLACKHOLE.format(length="300ms")),
        tmp_path / "runs",
        before=["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh"],
    )
    finished = started.finish()
    assert finished.code in (0, 1, 3)
    assert finished.faults("undone")


def test_a_store_that_cannot_be_used_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_STORE", str(tmp_path))
    finished = run(document(tmp_path, LONG), tmp_path / "runs")
    assert finished.code == 2
    assert "CHAOS_STORE" in finished.output
    assert finished.folder is None


def test_a_disk_that_takes_nothing_more_keeps_no_fault_from_being_undone(tmp_path: Path) -> None:
    """Neither journal nor store can be written any more; a limit on the size of files stands in for a full disk."""
    started = Started(document(tmp_path, LONG), tmp_path / "runs")
    started.wait_for("phase", "during")
    folder = started.folder()
    assert folder is not None
    (record,) = (folder / "lab" / "node0" / "faults").iterdir()
    resource.prlimit(started.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    started.signal(signal.SIGTERM)
    finished = started.finish()
    assert finished.code == 5, finished.output
    assert f"{folder} cannot be written: File too large" in finished.output
    assert "chaos sweep --all" in finished.output
    assert "Traceback" not in finished.output
    assert not record.exists(), "its node has undone it"
    with Ledger.open() as ledger:
        assert [promise.fault for promise in ledger.open_promises()] == [record.stem]
        proofs, still = ledger.reconcile()
        assert (list(proofs), still) == ([record.stem], [])

"""``chaos halt`` from any folder, and what the next command says of what a dead controller has left open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab_help import eventually

from chaos.engine import halt, processes
from chaos.engine.ledger import Ledger
from tests.engine.runs import BLACKHOLE, Started, document

PLACE = {"transport": "local", "state": "/somewhere"}
LONG = BLACKHOLE.format(length="60s")
whole_runs = [pytest.mark.lab, pytest.mark.train, pytest.mark.usefixtures("nothing_left")]


def chaos(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command, from another folder than the run's."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "chaos", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path},
    )


def waiting(folder: Path, *runs: str, code: str = "") -> subprocess.Popen[str]:
    """A process that has entered itself as the controller of some runs, does ``code``, and waits for a signal."""
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom chaos.engine.ledger import Ledger\n"
        "ledger = Ledger.open()\n"
        "for run in sys.argv[1:]:\n"
        "    ledger.begin_run(run, Path('/runs') / run, os.getpid())\n"
        f"{code}\nprint('up', flush=True)\nsignal.pause()\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", script, *runs],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_without_a_store_or_a_run_nothing_is_halted(tmp_path: Path, store_file: Path) -> None:
    done = chaos("halt", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "no run is under way\n")
    assert not store_file.exists()
    Ledger.open().close()
    assert chaos("halt", "--all", cwd=tmp_path).stdout == "no run is under way\n"
    wrong = chaos("halt", "nosuch", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "no run 'nosuch' is under way (running: none)" in wrong.stderr
    assert chaos("halt", "x", "--all", cwd=tmp_path).returncode == 2


def test_of_several_runs_one_must_be_named(tmp_path: Path) -> None:
    process = waiting(tmp_path, "run-a", "run-b")
    done = chaos("halt", cwd=tmp_path)
    assert done.returncode == 2
    assert "run-a" in done.stderr
    assert "run-b" in done.stderr
    assert "may be run-a or run-b" in chaos("halt", "run-", cwd=tmp_path).stderr
    assert process.poll() is None
    process.kill()
    process.wait()


def test_all_are_halted_at_once_and_one_that_cannot_be_spares_no_other(tmp_path: Path) -> None:
    mine, other = waiting(tmp_path, "run-a"), waiting(tmp_path, "run-b")
    with Ledger.open() as ledger:
        ledger._store.begin_run("run-c", "/runs/run-c", "another-host", processes.identity(os.getpid()))
    done = chaos("halt", "--all", cwd=tmp_path)
    assert (mine.wait(), other.wait()) == (-signal.SIGTERM, -signal.SIGTERM)
    assert done.returncode == 5
    assert done.stdout.count("has ended: everything is undone") == 2
    assert "run run-c is controlled from elsewhere (host another-host): halt it there" in done.stderr


@pytest.mark.parametrize("deaf", ["stopped", "hung"])
def test_a_controller_that_does_not_react_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: str) -> None:
    """CASES 2."""
    monkeypatch.setattr(halt, "REACT", 0.3)
    hung = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    process = waiting(tmp_path, "run-a", code=hung if deaf == "hung" else "")
    if deaf == "stopped":
        process.send_signal(signal.SIGSTOP)
    with Ledger.open() as ledger:
        halted = halt.halt(ledger, halt.find(ledger, "run-a"), "somebody")
        assert (halted.how, halted.still) == ("killed", [])
        assert process.wait() == -signal.SIGKILL
        assert ledger.running() == []


def test_what_is_open_after_the_controllers_death_is_told_with_exit_code_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halt, "AFTERMATH", 0.2)
    process = waiting(tmp_path, "run-a")
    with Ledger.open() as ledger:
        ledger.promise("f1", run="run-a", place=PLACE, kind="k", params={}, deadline_ns=time.monotonic_ns())
        row = halt.find(ledger, "run")
        process.kill()
        process.wait()
        halted = halt.halt(ledger, row, "somebody")
    assert [promise.fault for promise in halted.still] == ["f1"]


def test_a_number_that_was_given_again_is_not_signalled(tmp_path: Path) -> None:
    process = waiting(tmp_path, "run-a")
    with Ledger.open() as ledger:
        (row,) = ledger.running()
        row.controller["start"] -= 1  # another process had this number then
        assert halt.halt(ledger, row, "somebody").how == "ended"
        assert process.poll() is None
        row.controller["pidns"] = 1
        with pytest.raises(halt.InputError, match="controlled from elsewhere"):
            halt.halt(ledger, row, "somebody")
    process.kill()
    process.wait()


def test_the_next_command_says_what_is_open_and_since_when(tmp_path: Path) -> None:
    """CASES 1, 9 and 18: what nobody has proven is never taken for clean."""
    with Ledger.open() as ledger:
        ledger.begin_run("run-a", tmp_path, os.getpid())
        for number in range(7):
            ledger.promise(f"f{number}", run="run-a", place=PLACE, kind="k", params={}, deadline_ns=0)
        assert chaos("experiments", cwd=tmp_path).stderr == "", "its controller, this process, is at work"
        ledger.end_run("run-a")
    told = chaos("experiments", cwd=tmp_path)
    assert told.returncode == 0
    lines = told.stderr.splitlines()
    assert len(lines) == 6
    assert "open: fault f0 (k) on this machine (records in /somewhere) since 20" in lines[0]
    assert lines[0].endswith("chaos sweep --all clears it")
    assert lines[-1] == "chaos: and 2 more"
    for silent in (("--help",), ("--version",), ("run", "--help"), ("halt",)):
        assert chaos(*silent, cwd=tmp_path).stderr == ""


def test_a_promise_whose_lab_has_gone_is_closed_by_the_next_command_and_not_told(tmp_path: Path) -> None:
    gone = {"pid": 1, "start": 0, "boot": processes.boot_id(), "pidns": processes.identity(1)["pidns"]}
    place = {"transport": "lab", "node": 0, "lab": "/the/lab", "keeper": gone}
    with Ledger.open() as ledger:
        ledger.begin_run("run-a", tmp_path, os.getpid())
        ledger.promise("f1", run="run-a", place=place, kind="k", params={}, deadline_ns=0)
        assert chaos("experiments", cwd=tmp_path).stderr == ""
        assert ledger.open_promises() == []


def test_a_store_that_cannot_be_read_is_told_in_one_line_and_stops_no_command(tmp_path: Path, store_file: Path) -> None:
    """CASES 10."""
    store_file.parent.mkdir()
    store_file.write_bytes(b"no database" * 1000)
    told = chaos("experiments", cwd=tmp_path)
    assert told.returncode == 0
    assert told.stderr.count("\n") == 1
    assert "it is no database" in told.stderr
    assert "is not known" in told.stderr


class TestWholeRuns:
    """Real runs, with real training."""

    pytestmark = whole_runs

    def test_halt_undoes_everything_and_the_scorecard_says_who_asked(self, tmp_path: Path) -> None:
        """CASES 2."""
        started = Started(document(tmp_path, LONG), tmp_path / "runs")
        started.wait_for("phase", "during")
        done = chaos("halt", cwd=Path("/"))
        assert done.returncode == 0, done.stderr
        assert "has ended: everything is undone" in done.stdout
        finished = started.finish()
        assert finished.code == 4, finished.output
        assert "halted by 'chaos halt'" in finished.card["reason"]
        assert next(event for event in finished.journal if event["e"] == "end")["reason"] == "halted"
        assert [event["residue"] for event in finished.faults("undone")] == [[]]

    def test_a_stopped_run_is_killed_and_its_lab_takes_the_fault_along(self, tmp_path: Path) -> None:
        """CASES 1 and 9."""
        started = Started(document(tmp_path, LONG), tmp_path / "runs")
        started.wait_for("phase", "during")
        started.signal(signal.SIGSTOP)
        done = chaos("halt", "--all", cwd=Path("/"))
        assert done.returncode == 0, done.stderr
        assert "did not react and was killed: everything is undone" in done.stdout
        assert started.process.wait(30) == -signal.SIGKILL
        with Ledger.open() as ledger:
            assert eventually(lambda: ledger.running() == [], "no run")

    def test_two_runs_at_once_share_the_store_and_one_is_halted(self, tmp_path: Path) -> None:
        """CASES 8 and 17."""
        first = Started(document(tmp_path, LONG), tmp_path / "first")
        second = Started(document(tmp_path, BLACKHOLE.format(length="300ms")), tmp_path / "second")
        first.wait_for("phase", "during")
        assert first.folder() is not None
        assert chaos("halt", first.folder().name, cwd=tmp_path).returncode == 0
        assert first.finish().code == 4
        finished = second.finish()
        assert finished.code in (0, 1, 3), finished.output
        assert finished.card["cleanup"]["verdict"] == "clean"

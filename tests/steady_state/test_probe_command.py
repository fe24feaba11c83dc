"""The probe of a command, with real processes."""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from workload_views import View

from steady_state import PROBES, Measurement, ProbeFailed

LONG = 60.0  # seconds; a time limit that no test means to reach


def measure(*argv: str, timeout: float = LONG, **params: Any) -> Measurement:
    probe = PROBES["command"]
    return probe.measure(probe.Params(argv=list(argv), **params), View(), timeout)


def python(program: str) -> tuple[str, ...]:
    return sys.executable, "-c", program


@pytest.mark.parametrize(
    ("program", "params", "value"),
    [
        ("pass", {}, 0),
        ("raise SystemExit(3)", {}, 3),
        ("import os; os.kill(os.getpid(), 9)", {}, -9),
        ("print(' some text ')", {"value": "stdout"}, "some text"),
        ("print(12.5)", {"value": "stdout_number"}, 12.5),
    ],
)
def test_a_command_gives_its_exit_code_or_its_output(program: str, params: dict[str, str], value: object) -> None:
    assert measure(*python(program), **params).value == value


def test_arguments_reach_the_program_as_they_are() -> None:
    """Case 62: no shell reads them."""
    argument = "$(touch /tmp/never); `id` 'quoted' \"double\" | cat > x"
    assert measure(*python("import sys; print(sys.argv[1])"), argument, value="stdout").value == argument


def test_what_is_written_beside_the_value_is_evidence() -> None:
    measured = measure(*python("import sys; print('out'); print('why', file=sys.stderr); raise SystemExit(2)"))
    assert measured.evidence == {"exit_code": 2, "stdout": "out", "stderr": "why"}


@pytest.mark.parametrize(
    ("argv", "params", "words"),
    [
        (("/no/such/program",), {}, "/no/such/program cannot be run: No such file or directory"),
        (("/tmp",), {}, "/tmp cannot be run: Permission denied"),
        (("a\0b",), {}, "cannot be run: embedded null byte"),
        (
            python("import sys; sys.exit('no driver')"),
            {"value": "stdout"},
            "ended with 1, so its output does not count: no driver",
        ),
        (python("print('lots')"), {"value": "stdout_number"}, "wrote 'lots', which is no number"),
        (python("pass"), {"value": "stdout_number"}, "wrote '', which is no number"),
    ],
)
def test_a_command_that_cannot_be_measured_is_a_failed_probe(
    argv: tuple[str, ...], params: dict[str, str], words: str
) -> None:
    """Case 39: not an error of the tool."""
    with pytest.raises(ProbeFailed) as caught:
        measure(*argv, **params)
    assert words in str(caught.value)


@pytest.mark.parametrize("argv", [[], [""]])
def test_a_command_needs_a_program(argv: list[str]) -> None:
    with pytest.raises(ValueError, match="found an empty 'argv'"):
        PROBES["command"].Params(argv=argv)


def test_much_output_is_read_to_the_end_and_kept_in_part() -> None:
    """Case 50: both streams are full, nothing waits for the other."""
    program = "import sys\nfor _ in range(40): sys.stdout.write('o' * 65536); sys.stderr.write('e' * 65536)"
    measured = measure(*python(program), value="stdout")
    assert measured.value == "o" * 65536
    assert measured.evidence["exit_code"] == 0


GRANDCHILD = "sh -c 'echo ready >&3; exec sleep 600' 3>\"$0\" &"  # says so when it runs, and holds on to the FIFO


class Fifo:
    """A FIFO that a grandchild holds open for writing while it lives."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self) -> bytes:
        """What is written next; empty once no process holds the other end any more."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN | select.POLLHUP)
        assert poll.poll(LONG * 1000), "nothing happened"
        return os.read(self._reader, 100)


def in_thread(*argv: str, timeout: float) -> queue.Queue[Measurement | ProbeFailed]:
    results: queue.Queue[Measurement | ProbeFailed] = queue.Queue()

    def run() -> None:
        try:
            results.put(measure(*argv, timeout=timeout, value="stdout"))
        except ProbeFailed as failure:
            results.put(failure)

    threading.Thread(target=run, daemon=True).start()
    return results


def test_at_the_time_limit_the_whole_process_group_is_killed(tmp_path: Path) -> None:
    """Cases 23 and 53: the grandchild does not live on."""
    held = Fifo(tmp_path / "held")
    results = in_thread("/bin/sh", "-c", f"{GRANDCHILD} sleep 600", held.path, timeout=3.0)
    assert held.read() == b"ready\n"
    assert held.read() == b""
    failure = results.get(timeout=LONG)
    assert isinstance(failure, ProbeFailed)
    assert str(failure) == "/bin/sh was killed, with its process group, after 3s"


def test_a_grandchild_left_behind_neither_lives_on_nor_holds_the_probe_up(tmp_path: Path) -> None:
    held, go_on = Fifo(tmp_path / "held"), tmp_path / "go_on"
    os.mkfifo(go_on)
    results = in_thread("/bin/sh", "-c", f'{GRANDCHILD} cat "$1"; echo done', held.path, str(go_on), timeout=LONG)
    assert held.read() == b"ready\n"
    go_on.write_text("it may ")
    measured = results.get(timeout=LONG / 2)
    assert isinstance(measured, Measurement)
    assert measured.value == "it may done"
    assert held.read() == b""

"""Output that never holds anybody up."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.cli import output
from chaos.cli.output import Unblocking


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue


def test_everything_is_written_before_the_end(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        stream = Unblocking(file)
        for number in range(500):
            stream.write(f"line {number} ü\n")
        stream.finish()
    assert (tmp_path / "out").read_text(encoding="utf-8").count("ü\n") == 500


def test_a_reader_that_stands_still_blocks_no_writer(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PATIENCE", 0.1)
    gone = threading.Event()
    with os.fdopen(os.dup(pipe[1]), "w") as file:
        stream = Unblocking(file, gone.set)
        began = time.monotonic()
        for _ in range(5 * output.MOST):
            stream.write("x" * 1000)
        stream.finish()
        assert time.monotonic() - began < 5
    assert not gone.is_set()


def test_a_reader_that_goes_is_noticed_without_writing(pipe: tuple[int, int]) -> None:
    gone = threading.Event()
    with os.fdopen(os.dup(pipe[1]), "w") as file:
        stream = Unblocking(file, gone.set)
        os.close(pipe[0])
        assert gone.wait(10)
        stream.write("into the void")
        stream.finish()


def test_a_reader_may_go_once_everything_is_written(pipe: tuple[int, int]) -> None:
    calls: list[str] = []
    with os.fdopen(os.dup(pipe[1]), "w") as file:
        stream = Unblocking(file, lambda: calls.append("gone"))
        stream.write("the end")
        stream.finish()
        assert os.read(pipe[0], 100) == b"the end"
        os.close(pipe[0])
        for thread in threading.enumerate():
            if thread.name == "terminal":
                thread.join(10)
    assert calls == []


def test_without_a_stream_nothing_is_written() -> None:
    stream = Unblocking(None)
    assert stream.write("x") == 1
    assert not stream.isatty()
    stream.finish()

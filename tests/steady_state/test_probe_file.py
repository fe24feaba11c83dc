"""The probe of a file, with real ones."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from workload_views import View

from steady_state import PROBES, Measurement, ProbeFailed


def measure(path: Path | str, value: str = "exists") -> Measurement:
    probe = PROBES["file"]
    params: Any = probe.Params(path=str(path), value=value)
    return probe.measure(params, View(), 1.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.txt"
    path.write_text("step 50 – gültig\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("value", "expected"), [("exists", True), ("size", 20), ("text", "step 50 – gültig\n")])
def test_a_file_gives_what_is_asked_for(file: Path, value: str, expected: object) -> None:
    assert measure(file, value).value == expected


def test_the_age_of_a_file_counts_from_its_last_change(file: Path) -> None:
    then = time.time() - 3600
    os.utime(file, (then, then))
    assert 3600 <= measure(file, "age").value < 3660


def test_a_file_from_the_future_has_no_negative_age(file: Path) -> None:
    then = time.time() + 3600
    os.utime(file, (then, then))
    assert measure(file, "age").value == 0.0


def test_a_file_that_is_not_there_does_not_exist(tmp_path: Path) -> None:
    assert measure(tmp_path / "none").value is False
    assert measure(tmp_path / "none" / "below").value is False


@pytest.mark.parametrize("value", ["size", "text", "age"])
def test_a_file_that_is_not_there_has_nothing_else(tmp_path: Path, value: str) -> None:
    with pytest.raises(ProbeFailed, match="none does not exist"):
        measure(tmp_path / "none", value)


def test_a_text_is_utf_8_short_and_of_a_regular_file(tmp_path: Path) -> None:
    """Case 46: UTF-8 under any locale, else a failure of the probe."""
    binary, long, fifo = tmp_path / "binary", tmp_path / "long", tmp_path / "fifo"
    binary.write_bytes(b"\xff\xfe")
    long.write_bytes(b"x" * ((1 << 20) + 1))
    os.mkfifo(fifo)  # opening it would wait for a writer
    for path, words in ((binary, "is not UTF-8"), (long, "more than a text"), (fifo, "is no regular file")):
        with pytest.raises(ProbeFailed, match=words):
            measure(path, "text")


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_path_that_can_be_none_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="write the path of a file"):
        PROBES["file"].Params(path=path)

"""Processes for faults to be aimed at."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from injectors import _processes


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a Python script and waits until it says ``ready``; kills it with all that it has started."""
    # The test's process stands in for the agent, and what it starts for the job, which no agent starts.
    monkeypatch.setattr(_processes, "child_of_ours", lambda pid: False)
    started: list[subprocess.Popen[bytes]] = []

    def run(script: str, *words: str, title: str | None = None, **environment: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [title or sys.executable, "-c", script, *words],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | environment,
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return child

    yield run
    for child in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()

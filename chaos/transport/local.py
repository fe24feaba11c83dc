"""An agent on this machine, as a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from chaos.agent import places
from chaos.agent.protocol import Message
from chaos.transport.bundle import AGENT
from chaos.transport.pipe import AgentClient, Pipe, sink, source


def python_path() -> str:
    """``PYTHONPATH`` for an agent that runs this same code."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


class _Child:
    """A child process whose wait is bounded by a time-out that is an answer, not an exception."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait(self, timeout: float | None = None) -> int | None:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)


def state_folder() -> Path:
    """Where an agent of this node that is told nothing else keeps its records."""
    return Path(places.state_folder())


def has_records() -> bool:
    """Whether an undo record lies there: of a fault that somebody holds, or of one that is left."""
    folder = Path(places.records_folder(places.state_folder()))
    try:
        return any(folder.glob("*.json"))
    except OSError:  # there is none, or it is another user's
        return False


def start(
    state: Path,
    log: Path,
    on_event: Callable[[Message], None],
    *,
    name: str = "the controller",
    looks: bool = False,
) -> AgentClient:
    """Start an agent beside the controller, for faults that are made from outside of the node, or for this node.

    Args:
        state: the folder for its undo records.
        log: the file for its stderr.
        name: for messages.
        looks: it changes nothing: what is left is told, and stays.

    Raises:
        AgentError: it does not start.
    """
    pipe = run(AGENT, log, {"CHAOS_STATE": str(state)}, options=["--look"] if looks else [])
    return AgentClient(name, pipe.stdin, pipe.stdout, pipe.process, on_event)


def run(module: str, log: Path, env: Mapping[str, str], options: Sequence[str] = ()) -> Pipe:
    """Start a module of ours on this machine.

    Args:
        log: the file for its stderr.
        env: beside our own environment.
    """
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env={**os.environ, **env, "PYTHONPATH": python_path()},
        )
    assert process.stdin is not None
    assert process.stdout is not None
    ends = os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno())
    process.stdin.close()
    process.stdout.close()
    return Pipe(sink(ends[0]), source(ends[1]), _Child(process))

"""The probe of a command: its exit code, or what it writes.

A list of arguments, never a shell. It runs in a process group of its own, which is killed as a whole at the time
limit, and also when the command has ended: a grandchild left behind neither lives on nor holds the probe up. A run that
ends does not wait for a probe that hangs: then its group is killed with us.
"""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from chaos import quantities
from steady_state.contract import Measurement, ProbeFailed, ValueType
from steady_state.view import WorkloadView

_running: set[int] = set()  # process groups that are not killed yet
_MOST_OUTPUT = 1 << 16  # bytes kept of each stream; the rest is read and dropped


@dataclass(frozen=True)
class CommandParams:
    """What to run, and what of it is the value."""

    argv: list[str] = field(metadata={"help": "the program and its arguments; no shell reads them"})
    value: Literal["exit_code", "stdout", "stdout_number"] = field(
        default="exit_code",
        metadata={"help": "the exit code (negative: the signal), the text written, or that text as a number"},
    )

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ValueError("found an empty 'argv'; write the program and its arguments, as in [nvidia-smi, -L]")


@dataclass(frozen=True)
class Ended:
    """How a command ended. ``code`` is None if it was killed at its time limit."""

    code: int | None
    out: bytes
    err: bytes


class Command:
    """What a command says."""

    name = "command"
    about = "the exit code or the output of a command that runs beside the controller"
    value: ValueType = "any"
    Params = CommandParams

    def measure(self, params: CommandParams, _view: WorkloadView, timeout: float, /) -> Measurement:
        """An output counts only if the command ended with 0."""
        ended = run(params.argv, timeout)
        err = ended.err.decode("utf-8", "replace").strip()
        if ended.code is None:
            limit = quantities.format("duration", timeout)
            raise ProbeFailed(f"{params.argv[0]} was killed, with its process group, after {limit}")
        out = ended.out.decode("utf-8", "replace").strip()
        evidence = {"exit_code": ended.code, "stdout": out[-500:], "stderr": err[-500:]}
        if params.value == "exit_code":
            return Measurement(ended.code, f"{params.argv[0]} ended with {ended.code}", evidence)
        if ended.code != 0:
            last = f": {err.splitlines()[-1]}" if err else ""
            raise ProbeFailed(f"{params.argv[0]} ended with {ended.code}, so its output does not count{last}")
        if params.value == "stdout":
            return Measurement(out, f"{params.argv[0]} wrote {len(out)} characters", evidence)
        try:
            return Measurement(float(out), f"{params.argv[0]} wrote {out}", evidence)
        except ValueError:
            raise ProbeFailed(f"{params.argv[0]} wrote {out[:80]!r}, which is no number") from None


def run(argv: list[str], timeout: float) -> Ended:
    """Run to the end or for ``timeout`` seconds; nothing of its process group is left. Raises ``ProbeFailed``."""
    deadline = time.monotonic() + timeout
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise ProbeFailed(f"{argv[0]} cannot be run: {getattr(error, 'strerror', None) or error}") from None
    assert process.stdout is not None and process.stderr is not None
    kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    _running.add(process.pid)
    pidfd = os.pidfd_open(process.pid)
    in_time = False
    try:
        with selectors.DefaultSelector() as selector:
            for descriptor in (*kept, pidfd):
                selector.register(descriptor, selectors.EVENT_READ)
            in_time = _drain(selector, kept, process.pid, pidfd, deadline)
    finally:
        _kill_group(process.pid)
        _running.discard(process.pid)  # before its number can be another's
        code = process.wait()
        os.close(pidfd)
        out, err = (bytes(kept[stream.fileno()]) for stream in (process.stdout, process.stderr))
        process.stdout.close()
        process.stderr.close()
    return Ended(code if in_time else None, out, err)


def _drain(selector: selectors.BaseSelector, kept: dict[int, bytearray], pid: int, pidfd: int, deadline: float) -> bool:
    """Read both streams until the child has ended and what it wrote is read; False at the deadline."""
    ended = False
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return ended  # True: only a grandchild that left the group still writes
        ready = [key.fd for key, _ in selector.select(0 if ended else left)]
        if ended and not ready:
            return True
        for descriptor in ready:
            if descriptor == pidfd:
                ended = True
                selector.unregister(pidfd)
                _kill_group(pid)  # what is left behind would go on writing
                continue
            data = os.read(descriptor, 1 << 16)
            if not data:
                selector.unregister(descriptor)
            kept[descriptor] += data[: _MOST_OUTPUT - len(kept[descriptor])]


def _kill_group(pid: int) -> None:
    """Kill the group of a child that has not been waited for yet, so that its number is still its own."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@atexit.register
def _kill_all() -> None:
    for pid in list(_running):
        _kill_group(pid)

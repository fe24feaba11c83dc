"""An agent as a real process, spoken to over its pipe line by line, without the controller's client."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab_help import eventually

ROOT = Path(__file__).resolve().parents[2]
# The real main with shorter times, so that a test need not wait for them.
SCRIPT = """
import sys
from chaos.agent import main, protocol, undo
protocol.LEASE = float(sys.argv[1])
undo.RETRIES = (0.0, 0.01, 0.01)
protocol.SLACK = float(sys.argv[2])
protocol.LATEST = protocol.SLACK - 1.0
main.main()
"""
PLANTED = "planted_injectors:Planted"


class AgentProcess:
    """One agent.

    Args:
        folder: its state is below ``state``, its stderr in ``stderr``; planted faults are made in it.
        lease: seconds.
        slack: seconds from a fault's scheduled end to its deadline.
        looks: start it with ``--look``.
        code: where agent and injectors are; by default this tree.
        path: what comes before that.
        before: what stands before the command, such as a ``nsenter`` into other namespaces.
    """

    def __init__(
        self,
        folder: Path,
        lease: float = 60.0,
        *,
        slack: float = 5.0,
        looks: bool = False,
        code: Path | None = None,
        path: Iterable[Path] = (),
        before: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.guardians: set[int] = set()
        self.seen: list[dict[str, Any]] = []
        found = [*path, code] if code else [*path, ROOT, Path(__file__).parent]
        with (folder / "stderr").open("ab") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-P", "-c", SCRIPT, str(lease), str(slack), *(["--look"] if looks else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ
                | {
                    "CHAOS_STATE": str(folder / "state"),
                    "CHAOS_RUNTIME": str(folder / "run"),
                    "PLANTED_FOLDER": str(folder),
                    "PYTHONPATH": os.pathsep.join(map(str, found)),
                },
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input, self._output = self.process.stdin, self.process.stdout
        self._number = 0
        self.hello = self.next()

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for guardian in self.guardians:  # one that cannot undo what a test planted would try for minutes
            with contextlib.suppress(ProcessLookupError):
                os.kill(guardian, signal.SIGKILL)
        self.input.close()
        self._output.close()

    def next(self) -> dict[str, Any]:
        """The next line; at the end an event ``end``."""
        line = self._output.readline()
        message = json.loads(line) if line else {"event": "end"}
        self.seen.append(message)
        if message.get("guardian") is not None:
            self.guardians.add(message["guardian"])
        return message

    def say(self, **message: Any) -> int:
        self._number += 1
        self.write(json.dumps({"id": self._number, **message}).encode() + b"\n")
        return self._number

    def write(self, data: bytes) -> None:
        self.input.write(data)
        self.input.flush()

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """A request's answer; events on the way are kept in ``seen``."""
        number = self.say(op=op, **fields)
        while True:
            message = self.next()
            assert message.get("event") != "end", (self.folder / "stderr").read_text()
            if message.get("re") == number:
                return message

    def event(self, what: str, fault: str | None = None, **fields: Any) -> dict[str, Any]:
        """Read on until an event comes; ``end`` is the end of its output."""
        while True:
            message = self.next()
            wanted = {"event": what, **({} if fault is None else {"fault": fault}), **fields}
            if all(message.get(key) == value for key, value in wanted.items()):
                return message
            assert message.get("event") != "end", f"the agent ended without {what}: {self.seen}"

    def order(self, **params: Any) -> dict[str, Any]:
        """The parts of an order to arm that are the same for every planted fault."""
        return {
            "implementation": PLANTED,
            "params": {"folder": str(self.folder), **params},
            "target": {"node": 0},
        }

    def arm(self, fault: str = "f1", *, duration: float | None = 60.0, **more: Any) -> dict[str, Any]:
        """Arm a planted fault."""
        params = {key: more.pop(key) for key in ("fail", "left", "device", "hang") if key in more}
        timing = {"duration": duration, "at": time.monotonic_ns(), "owner": "a-run"}
        return self.ask("arm", fault=fault, **(self.order(**params) | timing | more))

    def fire(self, fault: str = "f1", at: int = 0) -> dict[str, Any]:
        """Fire it and wait until it is witnessed."""
        assert "error" not in self.ask("fire", fault=fault, at=at)
        return self.event("witness", fault, phase="during")

    def calls(self, fault: str = "f1") -> list[dict[str, Any]]:
        """What the planted injector was called for, in order."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if call["fault"] == fault]

    def names(self, fault: str = "f1") -> list[str]:
        return [call["call"] for call in self.calls(fault)]

    def effect(self, fault: str = "f1") -> bool:
        return (self.folder / f"{fault}.effect").exists()

    def record(self, fault: str = "f1") -> Path:
        return self.folder / "state" / "faults" / f"{fault}.json"

    def end(self) -> int:
        """Wait for its end."""
        while self.next().get("event") != "end":
            pass
        return self.process.wait()

    def murder(self) -> None:
        """SIGKILL, as the kernel does it when memory runs out."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def orphan(self) -> None:
        """SIGKILL to the guardian and the agent: nobody is left who could undo anything."""
        self.process.send_signal(signal.SIGSTOP)  # else it would start another guardian
        for guardian in self.guardians:
            kill_and_wait(guardian)
        self.murder()

    def gone(self, fault: str = "f1") -> None:
        """Nothing of a fault is left, neither effect nor record."""
        eventually(lambda: not self.effect(fault) and not self.record(fault).exists(), f"the end of {fault}")


def kill_and_wait(pid: int) -> None:
    """SIGKILL, and wait for the end, whether its parent reaps it or not."""
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [])
    finally:
        os.close(process)

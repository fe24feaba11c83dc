"""An injector that makes a harmless fault (a file) and writes down in which order, and with what on the disk, it was
called; and that fails where it is told to."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from injectors.contract import Evidence, InjectorError, Order, Phase, Stray, Support, Target, UndoRecord


@dataclass(frozen=True)
class PlantedParams:
    """Parameters.

    Attributes:
        folder: where the fault is made and the calls are written down.
        fail: how often which call fails.
        left: how often the residue is not empty.
        device: what it locks; by default something of its own.
        pause: how many seconds pass before it knows what it locks.
        hang: the call in which the whole process stops, as one does that is frozen.
    """

    folder: str
    fail: dict[str, int] = field(default_factory=dict)
    left: int = 0
    device: str = ""
    pause: float = 0.0
    hang: str = ""


class Planted:
    """The effect is a file named after the fault."""

    kind: ClassVar[str] = "test.planted"
    about: ClassVar[str] = "A file, for a time."
    mechanism: ClassVar[str] = "A file named after the fault is made."
    undoing: ClassVar[str] = "The file is removed."
    proof: ClassVar[str] = "There is no such file."
    reversal: ClassVar[str] = "exact"
    targets: ClassVar[Any] = ("node",)
    duration: ClassVar[str] = "optional"
    runs_on: ClassVar[str] = "node"
    Params: ClassVar[Any] = PlantedParams

    def __init__(self) -> None:
        self._left = 0

    def _called(self, name: str, record: UndoRecord) -> None:
        print("an injector of a site may print what it likes")
        path = Path(os.environ["CHAOS_STATE"], "faults", record.fault + ".json")
        try:
            with path.open(encoding="utf-8") as file:
                same = json.load(file) == record.as_dict()
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    locked = False
                except BlockingIOError:
                    locked = True
        except FileNotFoundError:
            same = locked = False
        call = {"fault": record.fault, "call": name, "on_disk": same, "locked": locked, "effect": self._there(record)}
        with Path(record.params["folder"], "calls.jsonl").open("a+", encoding="utf-8") as log:
            log.write(json.dumps({**call, "t": time.monotonic_ns(), "pid": os.getpid()}) + "\n")
            log.seek(0)
            so_far = sum(json.loads(line)["call"] == name for line in log if f'"{record.fault}"' in line)
        if so_far <= record.params["fail"].get(name, 0):
            raise (OSError(5, "planted") if name != "plan" else InjectorError("planted"))
        if record.params.get("hang") == name and so_far == 1:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # to this thread: it gets no step further

    @staticmethod
    def _effect(record: UndoRecord) -> Path:
        return Path(record.params["folder"], record.fault + ".effect")

    def _there(self, record: UndoRecord) -> bool:
        return self._effect(record).exists()

    def support(self, params: PlantedParams, target: Target) -> Support:
        if params.fail.get("support"):
            raise OSError(5, "planted")
        return Support("telemetry", ("luck",) if params.left else ())

    def plan(self, order: Order) -> UndoRecord:
        record = UndoRecord.of(self, order, {"former": "none"})
        self._called("plan", record)
        return record

    def devices(self, order: Order) -> tuple[str, ...]:
        time.sleep(order.params.pause)
        return (order.params.device or f"file:{order.params.folder}/{order.fault}",)

    def prepare(self, record: UndoRecord) -> None:
        self._called("prepare", record)

    def inject(self, record: UndoRecord) -> int:
        self._called("inject", record)
        self._effect(record).touch()
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        self._called("witness " + phase, record)
        there = self._there(record)
        return Evidence(there, "the file is there" if there else "there is no file", {"there": there})

    def undo(self, record: UndoRecord) -> int:
        self._called("undo", record)
        if self._there(record):
            self._effect(record).unlink()
        return time.monotonic_ns()

    def residue(self, record: UndoRecord) -> list[str]:
        self._left += 1
        return ["a planted rest"] if self._left <= record.params["left"] else []

    def strays(self, target: Target) -> list[Stray]:
        """Effects of whichever fault, in the folder that the environment names."""
        folder = os.environ.get("PLANTED_FOLDER")
        if folder is None:
            return []
        return [
            Stray(f"file:{folder}/{file.stem}", f"the planted file {file.name}", {"path": str(file)})
            for file in sorted(Path(folder).glob("*.effect"))
        ]

    def clear(self, stray: Stray) -> None:
        Path(stray.where["path"]).unlink()

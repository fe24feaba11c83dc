"""Injectors whose first undo in each process fails, as one does whose command or firmware is busy."""

from __future__ import annotations

from injectors.contract import UndoRecord
from injectors.fabric import Blackhole
from injectors.pcie import Throttle
from injectors.process import Signal

_tried: set[tuple[str, int]] = set()


def _fail_first(injector: object, record: UndoRecord) -> None:
    if (record.fault, id(type(injector))) not in _tried:
        _tried.add((record.fault, id(type(injector))))
        raise OSError(16, "planted: busy")


class FlakyBlackhole(Blackhole):
    def undo(self, record: UndoRecord) -> int:
        _fail_first(self, record)
        return super().undo(record)


class FlakyThrottle(Throttle):
    def undo(self, record: UndoRecord) -> int:
        _fail_first(self, record)
        return super().undo(record)


class FlakySignal(Signal):
    def undo(self, record: UndoRecord) -> int:
        _fail_first(self, record)
        return super().undo(record)


IMPLEMENTATIONS = {
    made_by.kind: f"tests.storm.flaky:{made_by.__name__}" for made_by in (FlakyBlackhole, FlakyThrottle, FlakySignal)
}

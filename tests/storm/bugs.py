"""Bugs to be planted in an agent: a storm that does not find them proves nothing.

``python -c "from tests.storm import bugs; bugs.NAME()"`` runs in the place of ``chaos.agent.main``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from chaos.agent import main
from chaos.agent.guard import Guard
from chaos.agent.locks import Locks
from chaos.agent.records import Held, Records
from injectors.contract import UndoRecord

SLOW_DISK = 0.4  # seconds that the late record takes to come to the disk: several of a storm's strikes fall into them


def change_before_write() -> None:
    """The change is made first, and only then is it written down, and watched, how it is undone."""
    write, watch = Records.write, Guard.watch

    class Unwritten(Held):
        """A record that comes to the disk after the first change."""

        def __init__(self, records: Records, record: UndoRecord) -> None:
            self.record = record
            self._write = lambda: write(records, record)
            self._held: Held | None = None
            self.watched_by: tuple[Guard, Locks] | None = None

        @contextlib.contextmanager
        def working(self, patience: float = 1.0) -> Iterator[None]:
            if self._held is not None:
                with self._held.working(patience):
                    yield
                return
            yield
            time.sleep(SLOW_DISK)
            self._held = self._write()
            assert self.watched_by is not None
            watch(self.watched_by[0], self._held, self.watched_by[1])

        def remove(self) -> None:
            if self._held is not None:
                self._held.remove()

        def close(self) -> None:
            if self._held is not None:
                self._held.close()

    def watch_later(guard: Guard, held: Any, locks: Locks) -> None:
        held.watched_by = (guard, locks)

    Records.write = lambda records, record: Unwritten(records, record)  # type: ignore[method-assign]  # noqa: PLW0108 - a method
    Guard.watch = watch_later  # type: ignore[method-assign]
    main.main()


def guardian_asleep() -> None:
    """The guardian is told of nothing."""
    Guard.watch = lambda *_: None  # type: ignore[method-assign]
    main.main()

"""The journal: the ordered list of everything that happened in a run, one JSON object a line."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from chaos import __version__

SCHEMA = "chaos.journal/1"
# Written to stable storage before going on: what was done, and what it was worth.
_SYNCED = frozenset({"fault", "error", "halt", "guard", "end"})


class Journal:
    """Writes one run's journal; safe from several threads.

    Args:
        path: the file, which must not exist.
        run: the run's id.
    """

    def __init__(self, path: Path, run: str) -> None:
        self._file = path.open("x", encoding="utf-8")
        self._lock = threading.Lock()
        self.write(
            "journal",
            schema=SCHEMA,
            run=run,
            wall=datetime.now(UTC).isoformat(timespec="milliseconds"),
            boot=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            version=__version__,
        )

    def write(self, event: str, **fields: Any) -> None:
        """Append an event, stamped now; nothing once the journal is closed: a probe that had hung came back too late.

        Raises:
            OSError: it cannot be written.
        """
        with self._lock:
            if self._file.closed:
                return
            line = {"e": event, "t": time.monotonic_ns(), **fields}
            self._file.write(json.dumps(_finite(line), ensure_ascii=False) + "\n")
            self._file.flush()
            if event in _SYNCED:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            try:
                self._file.close()
            except OSError:  # what could not be written was told when it was
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinities: they are written as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value

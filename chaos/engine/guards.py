"""Watches the guards of a run: conditions that end it, and the bound on its length."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from chaos.engine.journal import Journal
from chaos.engine.live import View
from chaos.engine.stop import Stop
from chaos.experiment import Experiment
from chaos.quantities import format as show
from steady_state import Checks

EVERY = 0.5  # seconds between two looks


class Guards:
    """Pulls the stop switch when a ``stop_if`` has held for its time, or when the run has lasted too long.

    Args:
        view: gives the workload's recent past.
    """

    def __init__(self, experiment: Experiment, view: Callable[[], View], journal: Journal, stop: Stop) -> None:
        self._experiment = experiment
        self._view = view
        self._journal = journal
        self._stop = stop
        self._ended = threading.Event()
        self._conditions = experiment.guards.stop_if
        self._checks = Checks(self._conditions)
        self._since: list[float | None] = [None] * len(self._conditions)
        self._armed = threading.Event()
        # Each has a thread of its own: a probe that hangs must not delay the bound.
        threading.Thread(target=self._watch, name="guards", daemon=True).start()
        threading.Thread(target=self._bound, name="at_most", daemon=True).start()

    def arm(self) -> None:
        """From now on ``stop_if`` counts: the workload is meant to be well."""
        self._armed.set()

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()

    def _watch(self) -> None:
        while self._conditions and not self._ended.wait(EVERY):
            if self._armed.is_set():
                self._look()

    def _bound(self) -> None:
        at_most = self._experiment.at_most
        if not self._ended.wait(at_most):
            self._trip(f"the run has lasted longer than at_most: {show('duration', at_most)}")

    def _look(self) -> None:
        results = self._checks.run("guard", self._view())
        now = time.monotonic()
        for number, (condition, result) in enumerate(zip(self._conditions, results, strict=True)):
            if result["error"] is not None or not result["ok"]:
                self._since[number] = None
                continue
            since = self._since[number] = self._since[number] or now
            if now - since >= condition.for_:
                self._trip(
                    f"stop_if: {result['probe']}: {result['text']}, for {show('duration', condition.for_)}",
                    {key: value for key, value in result.items() if key != "e"},
                )
                return

    def _trip(self, text: str, probe: dict[str, Any] | None = None) -> None:
        self._ended.set()
        self._stop.pull("guard", text)  # before the journal, which may wait for a disk
        if probe is not None:
            self._journal.write("probe", **probe)
        self._journal.write("guard", text=text)

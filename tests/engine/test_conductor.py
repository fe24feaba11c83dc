"""A conductor tells its fault's node what it is to do, in the order in which faults come."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.transport.pipe import AgentClient, Clock
from tests.engine.conducted import bench, join

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("nothing_left")]


def test_a_clock_that_is_known_better_by_then_does_not_move_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent refuses an instant later than the one that it was armed for."""
    with bench(tmp_path, after="1s", start=False) as it:
        agent = it.agents.reach(0)
        offsets = iter(range(0, 1_000_000_000, 1000))
        monkeypatch.setattr(AgentClient, "clock", property(lambda _: Clock(next(offsets), 10)))
        it.conductor.start()
        join(it)
        assert "fired" in it.whats(), it.events()
        assert not agent.hangs


def test_a_node_hears_of_the_earlier_fault_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What both need would be the later one's otherwise, and the earlier one refused."""
    asked = threading.Event()
    heard: list[str] = []
    with bench(tmp_path, start=False) as it:
        agent = it.agents.reach(0)
        ask = agent.ask

        def noting(op: str, **fields: Any) -> Any:
            heard.append(op if asked.is_set() else f"too early: {op}")
            return ask(op, **fields)

        monkeypatch.setattr(agent, "ask", noting)
        monkeypatch.setattr(it.conductor, "_before", SimpleNamespace(asked=asked))
        it.conductor.start()
        it.event("promised")
        asked.set()
        join(it)
        assert [op for op in heard if op.removeprefix("too early: ") != "renew"][:2] == ["arm", "fire"]
        assert it.conductor.asked.is_set()


def test_a_fault_that_is_never_asked_for_holds_up_no_later_one(tmp_path: Path) -> None:
    with bench(tmp_path, after="60s") as it:
        it.stop.pull("halt", "the test has seen enough")
        join(it)
        assert it.whats() == ["skipped"]
        assert it.conductor.asked.is_set()

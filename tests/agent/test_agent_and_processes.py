"""An agent and its guardian with faults of processes that match on a node."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import AgentProcess
from lab_help import eventually

from injectors import _cgroup, kernel


@pytest.fixture
def mark() -> str:
    """A word that no other process of the machine has in its arguments."""
    return f"m{uuid.uuid4().hex}"


@pytest.fixture
def busy(mark: str) -> Iterator[int]:
    """A process that computes."""
    child = subprocess.Popen(
        [sys.executable, "-c", "print('ready', flush=True)\nwhile True: pass", mark], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def test_an_agent_stops_what_matches_and_its_guardian_continues_it(tmp_path: Path, mark: str, busy: int) -> None:
    with AgentProcess(tmp_path) as agent:
        armed = agent.arm(
            implementation="injectors.process:Signal",
            params={"signal": "STOP", "argv_matches": mark},
            target={"node": 0},
        )
        assert [each["pid"] for each in armed["record"]["before"]["processes"]] == [busy]
        assert agent.fire()["effective"] is True
        agent.murder()
        eventually(lambda: kernel.stat_fields(busy)[0] != "T", "the process continued by the guardian")
        eventually(lambda: not agent.record().exists(), "the end of the record")


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: making cgroups needs root")
@pytest.mark.parametrize("end", ["itself", "its guardian", "the next agent"])
def test_a_limit_ends_with_whoever_is_left(tmp_path: Path, mark: str, busy: int, end: str) -> None:
    home = _cgroup.hierarchy("cpu")
    assert home is not None, "a kernel without CPU quotas"
    before = home.home(busy)
    with AgentProcess(tmp_path) as agent:
        armed = agent.arm(
            implementation="injectors.limits:Limit",
            params={"cpu": 0.1, "argv_matches": mark},
            target={"node": 0},
            duration=0.5 if end == "itself" else 60.0,
        )
        [group] = armed["record"]["before"]["groups"]
        during = agent.fire()
        assert during["effective"] is True, during
        if end == "itself":
            assert agent.event("undone", "f1")["residue"] == []
        elif end == "its guardian":
            agent.murder()
        else:
            agent.orphan()
            assert Path(group["path"]).is_dir(), "nobody is there who could have removed it"
            with AgentProcess(tmp_path) as other:
                assert other.hello["swept"][0]["residue"] == []
        eventually(lambda: not Path(group["path"]).exists(), "the end of the cgroup")
        eventually(lambda: not agent.record().exists(), "the end of the record")
    assert home.home(busy) == before

"""Agents on a node over SSH: their bundle, their end, and what becomes of their faults."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import queue
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab_help import PATIENCE, eventually, in_effect, until
from sshd import Sshd, needs_sshd

from chaos.agent import protocol
from chaos.inventory.access import Access
from chaos.transport import bundle as bundles
from chaos.transport.bundle import Bundle, bundle
from chaos.transport.pipe import AgentClient, AgentError
from chaos.transport.ssh import Connection, Connections, start, tail

pytestmark = needs_sshd
PLANTED = "planted_injectors:Planted"
Events = queue.SimpleQueue[dict[str, Any]]


@pytest.fixture
def events() -> Events:
    return queue.SimpleQueue()


class Node:
    """A server of its own, with an agent whose faults are files in a folder."""

    def __init__(self, folder: Path, server: Sshd, access: Access) -> None:
        self.folder = folder
        self.server = server
        self.access = access

    def start(self, connection: Connection, events: Events) -> AgentClient:
        return start(connection, self.folder / "log", events.put, extra=("planted_injectors",))

    def agents(self) -> list[int]:
        return self.server.processes("chaos.agent.main")

    def guardians(self) -> list[int]:
        return self.server.processes("guardian.main()")

    def uploads(self) -> list[Path]:
        return sorted(self.server.inside("/var/lib/chaos/agents").iterdir())

    def break_something(self, agent: AgentClient, events: Events, fault: str = "f1") -> None:
        in_effect(agent, fault, PLANTED, {"folder": str(self.folder)}, {"node": 0}, 60.0)
        until(events, "witness", phase="during")
        assert self.effect(fault)

    def effect(self, fault: str = "f1") -> bool:
        return (self.folder / f"{fault}.effect").exists()

    def undone(self, fault: str = "f1") -> None:
        record = self.folder / "state" / "faults" / f"{fault}.json"
        eventually(lambda: not self.effect(fault) and not record.exists(), f"the end of {fault}")


@pytest.fixture
def broken(
    tmp_path: Path, client_key: Path, home: Path, monkeypatch: pytest.MonkeyPatch, connections: Connections
) -> Iterator[Node]:
    """A node of its own."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "agent"))
    folder = tmp_path / "planted"
    folder.mkdir()
    env = {"CHAOS_STATE": f"{folder}/state", "CHAOS_RUNTIME": f"{folder}/run", "PLANTED_FOLDER": str(folder)}
    server = Sshd(tmp_path / "node", client_key.with_suffix(".pub"), env=env)
    server.known(home / ".ssh" / "known_hosts")
    yield Node(folder, server, Access(server.address, server.port, "root", client_key))
    connections.close()
    server.stop()


# -- its life ---------------------------------------------------------------------------------------------------------


def test_hello_requests_and_goodbye(node: Connection, sshd: Sshd, events: Events, tmp_path: Path) -> None:
    agent = start(node, tmp_path / "log", events.put)
    assert agent.name == "node 0"
    assert agent.hello["protocol"] == protocol.VERSION
    assert agent.request("ping")["t"] > 0
    with pytest.raises(AgentError, match="does not know the request 'dance'"):
        agent.request("dance")
    [process] = sshd.processes("chaos.agent.main")
    assert b"CHAOS_CONTROL=127.0.0.1\0" in Path(f"/proc/{process}/environ").read_bytes()
    agent.close()
    assert agent.gone
    agent.close()
    assert events.get(timeout=PATIENCE) == {"event": "gone"}
    assert node.alive, "the connection is kept"


def test_of_the_same_clock_the_offset_is_within_its_uncertainty(node: Connection, events: Events) -> None:
    agent = start(node, None, events.put)
    assert abs(agent.clock.offset_ns) <= agent.clock.uncertainty_ns
    agent.close()


def test_one_that_only_looks(node: Connection, events: Events) -> None:
    agent = start(node, None, events.put, looks=True)
    with pytest.raises(AgentError, match="only looks"):
        in_effect(agent, "f1", "injectors.process:Signal", {"signal": "STOP"}, {"node": 0}, 1.0)
    agent.close()


def test_its_stderr_goes_to_the_log(broken: Node, connections: Connections, events: Events) -> None:
    agent = broken.start(connections.to(broken.access, "node 0"), events)
    broken.break_something(agent, events)
    agent.close()
    assert "an injector of a site may print what it likes" in (broken.folder / "log").read_text()


def test_one_that_hangs_is_killed_through_the_connection(
    broken: Node, connections: Connections, events: Events
) -> None:
    agent = broken.start(connections.to(broken.access, "node 0"), events)
    [process] = broken.agents()
    os.kill(process, signal.SIGSTOP)
    until(events, "hangs")
    with pytest.raises(AgentError, match=r"does not answer within 0\.05 s"):
        agent.close(0.05)
    eventually(lambda: not broken.agents(), "its end")


# -- its bundle -------------------------------------------------------------------------------------------------------


def test_the_second_start_uploads_nothing(broken: Node, connections: Connections, events: Events) -> None:
    sent: list[bool] = []
    deliver = Bundle.deliver

    def watched(self: Bundle, *args: Any) -> bool:
        sent.append(deliver(self, *args))
        return sent[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bundle, "deliver", watched)
        for _ in range(2):
            broken.start(connections.to(broken.access, "node 0"), events).close()
    assert sent == [True, False]
    assert [path.name for path in broken.uploads()] == [bundle(("planted_injectors",)).digest]


def test_two_at_once_on_a_node_without_a_bundle(broken: Node, connections: Connections, events: Events) -> None:
    node = connections.to(broken.access, "node 0")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        agents = list(pool.map(lambda _: broken.start(node, events), range(4)))
    assert len({agent.hello["pid"] for agent in agents}) == 4
    for agent in agents:
        agent.close()
    assert len(broken.uploads()) == 1, "one bundle, and no rest of another"


def test_a_bundle_that_is_damaged_on_its_way_is_refused(broken: Node, connections: Connections, events: Events) -> None:
    good = bundle()
    damaged = bytearray(good.archive)
    damaged[len(damaged) // 2] ^= 1
    node = connections.to(broken.access, "node 0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chaos.transport.ssh.bundle", lambda extra: Bundle(good.digest, bytes(damaged)))
        with pytest.raises(AgentError, match="no agent starts on node 0: the agent's bundle was damaged on its way"):
            start(node, None, events.put)
    assert broken.uploads() == []
    start(node, None, events.put).close()


def test_a_bundle_that_breaks_off_leaves_nothing(broken: Node, connections: Connections, events: Events) -> None:
    node = connections.to(broken.access, "node 0")
    good = bundle()
    with pytest.MonkeyPatch.context() as patch:
        half = good.archive[: len(good.archive) // 2]
        command = Bundle(good.digest, good.archive).command("python3")
        patch.setattr(Bundle, "command", lambda self, python, options, module: command)
        patch.setattr("chaos.transport.ssh.bundle", lambda extra: Bundle(good.digest, half))
        patch.setattr("chaos.transport.ssh.START", 2.0)
        with pytest.raises(AgentError, match="no agent starts on node 0: nothing came in time"):
            start(node, None, events.put)
    eventually(lambda: not broken.agents(), "its end")
    assert broken.uploads() == []


def test_a_folder_that_others_can_write_is_not_trusted(broken: Node, connections: Connections, events: Events) -> None:
    node = connections.to(broken.access, "node 0")
    start(node, None, events.put).close()
    broken.server.inside("/var/lib/chaos/agents").chmod(0o777)
    with pytest.raises(AgentError, match="/var/lib/chaos/agents belongs to, or can be written by, somebody else"):
        start(node, None, events.put)


def test_an_ordinary_user_keeps_it_in_a_folder_of_its_own(
    connections: Connections, access: Access, sshd: Sshd, events: Events
) -> None:
    start(connections.to(replace(access, user="tester"), "node 0"), None, events.put).close()
    assert list((sshd.user_home / ".cache" / "chaos" / "agents").iterdir())


def test_a_python_that_is_too_old_says_so(
    connections: Connections, access: Access, events: Events, tmp_path: Path
) -> None:
    """No such Python can be had here: this one believes that it is one."""
    old = tmp_path / "python3.8"
    old.write_text(
        "#!/usr/bin/python3\nimport sys\nsys.version_info, sys.version = (3, 8, 10), '3.8.10 (default)'\n"
        "at = sys.argv.index('-c')\ncode, sys.argv = sys.argv[at + 1], ['-c', *sys.argv[at + 2:]]\nexec(code)\n"
    )
    old.chmod(0o755)
    node = connections.to(replace(access, python=str(old)), "node 0")
    with pytest.raises(AgentError, match=r"no agent starts on node 0: Python 3\.8\.10 found, 3\.9 or newer is needed"):
        start(node, None, events.put)


def test_a_python_that_is_not_there_says_so(connections: Connections, access: Access, events: Events) -> None:
    node = connections.to(replace(access, python="/opt/none/python3"), "node 0")
    with pytest.raises(AgentError, match=r"no agent starts on node 0: nothing was said; it said .*/opt/none/python3"):
        start(node, None, events.put)


def test_a_login_script_that_talks_is_skipped(node: Connection, sshd: Sshd, events: Events) -> None:
    rc = sshd.home / ".bashrc"
    rc.write_text('echo Welcome to the node; echo \'{"event": "hello"}\'; echo oops >&2; printf "no end of line"\n')
    try:
        agent = start(node, None, events.put)
        assert agent.request("ping")["t"] > 0
        agent.close()
    finally:
        rc.unlink()


def test_a_login_script_that_never_stops_talking_is_an_error(
    node: Connection, sshd: Sshd, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "_MOST_CHATTER", 2000)
    rc = sshd.home / ".bashrc"
    rc.write_text("yes I am still here\n")
    try:
        with pytest.raises(AgentError, match="found 'I am still here") as caught:
            start(node, None, events.put)
        assert len(str(caught.value)) < 700
    finally:
        rc.unlink()
    eventually(lambda: not sshd.processes("yes I am"), "its end")


def test_a_login_script_that_hangs_is_waited_for_so_long(
    node: Connection, sshd: Sshd, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.transport.ssh.START", 1.0)
    rc = sshd.home / ".bashrc"
    rc.write_text("read answer\n")
    try:
        with pytest.raises(AgentError, match="no agent starts on node 0: nothing came in time"):
            start(node, None, events.put)
    finally:
        rc.unlink()


# -- what becomes of its faults ---------------------------------------------------------------------------------------


def test_a_fault_is_made_and_undone(broken: Node, connections: Connections, events: Events) -> None:
    agent = broken.start(connections.to(broken.access, "node 0"), events)
    broken.break_something(agent, events)
    agent.request("disarm", fault="f1")
    until(events, "undone", fault="f1")
    broken.undone()
    agent.close()


def test_an_agent_that_dies_has_its_fault_undone_by_the_guardian(
    broken: Node, connections: Connections, events: Events
) -> None:
    agent = broken.start(connections.to(broken.access, "node 0"), events)
    broken.break_something(agent, events)
    [process] = broken.agents()
    os.kill(process, signal.SIGKILL)
    until(events, "gone")
    broken.undone()
    agent.close()
    calls = [json.loads(line) for line in (broken.folder / "calls.jsonl").read_text().splitlines()]
    assert len({call["pid"] for call in calls if call["call"] in ("inject", "undo")}) == 2


@pytest.mark.parametrize("cut", ["closed here", "sshd killed", "connection killed"])
def test_a_connection_that_is_cut_in_the_middle_of_a_fault(
    cut: str, broken: Node, connections: Connections, events: Events
) -> None:
    node = connections.to(broken.access, "node 0")
    agent = broken.start(node, events)
    followed = tail(node, str(broken.folder / "events"), lambda _: None)
    broken.break_something(agent, events)
    if cut == "closed here":
        node.close()
    else:
        for pid in broken.server.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if cut == "sshd killed" else signal.SIGTERM)
    until(events, "gone")
    broken.undone()
    with pytest.raises(AgentError, match="the agent of node 0 has gone: "):
        agent.request("ping")
    agent.close()
    assert followed.ended.wait(PATIENCE)
    eventually(lambda: not broken.agents() and not broken.guardians(), "the end of everybody on the node")
    again = broken.start(connections.to(broken.access, "node 0"), events)
    assert again.hello["left"] == []
    again.close()

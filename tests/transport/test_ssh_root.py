"""Becoming root on a node: by sudo with and without a password, by su."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab_help import eventually
from sshd import PASSWORD, Sshd, needs_sshd

from chaos.inventory.access import Access, Secret
from chaos.transport import ssh
from chaos.transport.pipe import AgentError
from chaos.transport.ssh import Connection, Connections, run, start

pytestmark = needs_sshd
LOOKS = ["sh", "-c", "id -u; echo $CHAOS_CONTROL; cat /proc/*/cmdline | tr '\\0' ' '"]


@pytest.fixture
def events() -> queue.SimpleQueue[dict[str, Any]]:
    return queue.SimpleQueue()


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Secret:
    monkeypatch.setenv("ROOT_WORD", PASSWORD)
    return Secret(env="ROOT_WORD")


@pytest.fixture
def tester(access: Access) -> Access:
    return replace(access, user="tester")


def server_with(rules: str, folder: Path, client_key: Path) -> Sshd:
    server = Sshd(folder, client_key.with_suffix(".pub"), sudo=rules)
    server.known(Path(os.environ["HOME"], ".ssh", "known_hosts"))
    return server


@pytest.fixture
def free(tmp_path: Path, client_key: Path, home: Path) -> Iterator[Sshd]:
    """A server whose ``tester`` needs no password."""
    server = server_with("ALL=(ALL) NOPASSWD: ALL", tmp_path / "free", client_key)
    yield server
    server.stop()


@pytest.mark.parametrize("how", ["sudo", "su"])
def test_with_a_password_that_is_seen_nowhere(
    how: Any, connections: Connections, tester: Access, secret: Secret, sshd: Sshd
) -> None:
    node = connections.to(replace(tester, become=how, become_password=secret), "node 0")
    done = run(node, LOOKS, 30, root=True)
    user, control, rest = done.stdout.decode().split("\n", 2)
    assert (user, control) == ("0", "127.0.0.1"), done
    assert PASSWORD not in rest + done.stderr.decode()
    assert run(node, ["id", "-un"], 30).stdout == b"tester\n", "only where it is asked for"
    assert PASSWORD not in sshd.log.read_text()


@pytest.mark.parametrize("how", ["sudo", "su"])
def test_an_agent_as_root_keeps_its_records_where_root_does(
    how: Any, connections: Connections, tester: Access, secret: Secret, sshd: Sshd, tmp_path: Path, events: Any
) -> None:
    node = connections.to(replace(tester, become=how, become_password=secret), "node 0")
    agent = start(node, tmp_path / "log", events.put)
    [line] = [path for path in sshd.processes("chaos.agent.main") if b"sudo" not in command(path)[:20]][-1:]
    status = Path(f"/proc/{line}/status").read_text()
    assert "Uid:\t0\t0\t0\t0" in status
    assert b"CHAOS_CONTROL=127.0.0.1\0" in Path(f"/proc/{line}/environ").read_bytes()
    agent.close()
    assert sshd.inside("/var/lib/chaos/agents").is_dir()
    assert PASSWORD not in (tmp_path / "log").read_text()
    eventually(lambda: not sshd.processes("chaos.agent.main"), "its end")


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("how", ["sudo", "su"])
def test_a_wrong_password_is_one_clear_error(
    how: Any, connections: Connections, tester: Access, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, events: Any
) -> None:
    monkeypatch.setenv("WRONG", "not it")
    node = connections.to(replace(tester, become=how, become_password=Secret(env="WRONG")), "node 0")
    what = "sudo of node 0 refuses the password" if how == "sudo" else "su: Authentication failure"
    with pytest.raises(AgentError, match=what) as caught:
        start(node, tmp_path / "log", events.put)
    assert "not it" not in str(caught.value)
    with pytest.raises(AgentError, match=what):
        run(node, ["true"], 30, root=True)


@pytest.mark.parametrize("how", ["sudo", "su"])
def test_a_password_that_is_missing(how: Any, connections: Connections, tester: Access, events: Any) -> None:
    node = connections.to(replace(tester, become=how), "node 0")
    what = "sudo: a password is required" if how == "sudo" else "su of node 0 asks for a password: name it"
    with pytest.raises(AgentError, match=what):
        start(node, None, events.put)
    node = connections.to(replace(tester, become=how, become_password=Secret(env="NOT_SET")), "node 0")
    with pytest.raises(AgentError, match="environment variable NOT_SET is not set"):
        start(node, None, events.put)


def test_a_password_that_nobody_asks_for_is_not_given(
    connections: Connections, tester: Access, secret: Secret, free: Sshd, events: Any, tmp_path: Path
) -> None:
    """The agent would find it in its input otherwise."""
    node = connections.to(replace(tester, port=free.port, become="sudo", become_password=secret), "node 0")
    agent = start(node, tmp_path / "log", events.put)
    assert agent.request("ping")["t"] > 0
    agent.close()
    assert PASSWORD not in (tmp_path / "log").read_text()
    assert run(node, ["cat"], 30, root=True).stdout == b""


def test_sudo_without_a_password(connections: Connections, tester: Access, free: Sshd, events: Any) -> None:
    node: Connection = connections.to(replace(tester, port=free.port, become="sudo"), "node 0")
    assert run(node, ["id", "-u"], 30, root=True).stdout == b"0\n"
    agent = start(node, None, events.put)
    agent.close()


def test_whoever_may_not(
    connections: Connections, tester: Access, secret: Secret, tmp_path: Path, client_key: Path, home: Path, events: Any
) -> None:
    server = server_with("", tmp_path / "none", client_key)
    try:
        node = connections.to(replace(tester, port=server.port, become="sudo", become_password=secret), "node 0")
        with pytest.raises(AgentError, match="tester is not in the sudoers file"):
            start(node, None, events.put)
        connections.close()
    finally:
        server.stop()


def test_a_password_that_is_asked_for_in_pieces() -> None:
    given: list[bytes] = []
    answer = ssh._Answer(Access("x", become="su", become_password=Secret(command=("echo", "word"))), "node 0")
    said = b"".join(answer.give(part, given.append) for part in (b"a notice\nPass", b"wor", b"d: ", b"later"))
    assert given == [b"word\n"]
    assert b"later" in said

"""One sshd for all tests that change nothing about it, and a user's folder with keys that it knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sshd import Sshd, keygen

from chaos.inventory.access import Access
from chaos.transport.ssh import Connection, Connections


@pytest.fixture(scope="session")
def client_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private key without a passphrase."""
    return keygen(tmp_path_factory.mktemp("client") / "client_key")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory, client_key: Path) -> Iterator[Sshd]:
    """A server that lets root and ``tester`` in, by key."""
    server = Sshd(tmp_path_factory.mktemp("sshd") / "server", client_key.with_suffix(".pub"))
    yield server
    server.stop()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The controller's user: an empty home, no ssh-agent."""
    folder = tmp_path / "controller"
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def known(home: Path, sshd: Sshd) -> Path:
    """The user knows the server."""
    return sshd.known(home / ".ssh" / "known_hosts")


@pytest.fixture
def access(sshd: Sshd, known: Path, client_key: Path) -> Access:
    """As root, by key."""
    return Access(sshd.address, sshd.port, "root", client_key)


@pytest.fixture
def connections() -> Iterator[Connections]:
    made = Connections()
    yield made
    made.close()


@pytest.fixture
def node(connections: Connections, access: Access) -> Connection:
    """A connection to the server."""
    return connections.to(access, "node 0")

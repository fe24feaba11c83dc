"""Who is at the other end, and who are we: host keys, the ssh configuration, jump hosts, keys, the ssh-agent."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lab_help import eventually
from sshd import PASSWORD, Sshd, keygen, needs_sshd

from chaos.inventory.access import Access, Secret
from chaos.transport import known_hosts, ssh_route
from chaos.transport.pipe import AgentError
from chaos.transport.ssh import Connection, Connections, run

pytestmark = needs_sshd


def works(connections: Connections, access: Access) -> str:
    """Whose session it is."""
    done = run(connections.to(access, "node 0"), ["id", "-un"], 20)
    assert done.code == 0, done
    return done.stdout.decode().strip()


# -- the host's key ---------------------------------------------------------------------------------------------------


def test_a_known_host_is_reached_and_its_connection_is_kept(connections: Connections, access: Access) -> None:
    one = connections.to(access, "node 0")
    assert connections.to(access, "node 0") is one
    assert works(connections, access) == "root"
    one.close()
    eventually(lambda: not one.alive, "the end")
    assert connections.to(access, "node 0") is not one


def test_small_requests_do_not_wait_for_each_other(node: Connection) -> None:
    """TCP_NODELAY: what costs 2.4 ms would cost 44."""
    sock = node._transport.sock._sock
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_an_unknown_host_is_refused_and_told_how_to_make_it_known(
    connections: Connections, access: Access, known: Path, sshd: Sshd
) -> None:
    known.write_text("# nobody\n")
    with pytest.raises(AgentError, match="is not known") as caught:
        connections.to(access, "node 0")
    shown = subprocess.run(["ssh-keygen", "-lf", sshd.key], capture_output=True, text=True, check=True).stdout.split()[
        1
    ]
    assert shown in str(caught.value)
    assert f"ssh-keyscan -p {sshd.port} {sshd.address} >> {known}" in str(caught.value)


def test_what_the_error_says_makes_the_host_known(
    connections: Connections, access: Access, known: Path, sshd: Sshd
) -> None:
    known.write_text("")
    with pytest.raises(AgentError) as caught:
        connections.to(access, "node 0")
    command = str(caught.value).rpartition("the same: ")[2]
    subprocess.run(["sh", "-c", command], check=True, stderr=subprocess.DEVNULL)
    assert works(connections, access) == "root"


def test_a_changed_key_is_refused_naming_file_and_line_and_the_fix_works(
    connections: Connections, access: Access, known: Path, sshd: Sshd, tmp_path: Path
) -> None:
    known.write_text("# a comment\n\nother.example ssh-ed25519 AAAA\n")
    sshd.known(known, keygen(tmp_path / "former"))
    with pytest.raises(AgentError, match=rf"has changed: .*{known}, line 4, has ssh-ed25519 SHA256:") as caught:
        connections.to(access, "node 0")
    fix = f"ssh-keygen -R '[{sshd.address}]:{sshd.port}' -f {known}"
    assert fix in str(caught.value)
    subprocess.run(["sh", "-c", fix], check=True, capture_output=True)
    with pytest.raises(AgentError, match="is not known"):
        connections.to(access, "node 0")


def test_case_52_entries_with_a_port_count_and_those_without_one_do_not(
    connections: Connections, access: Access, known: Path, sshd: Sshd
) -> None:
    """CASES 52: ``[host]:port`` is another host than ``host``."""
    _, kind, key = known.read_text().split()
    known.write_text(f"{sshd.address} {kind} {key}\n")
    with pytest.raises(AgentError, match="is not known"):
        connections.to(access, "node 0")
    for names in (f"[{sshd.address}]:{sshd.port}", f"x,[127.0.0.*]:{sshd.port}", f"[127.?.0.1]:{sshd.port}"):
        known.write_text(f"{names} {kind} {key}\n")
        assert works(Connections(), access) == "root"
    known.write_text(f"[127.0.0.*]:{sshd.port},![{sshd.address}]:{sshd.port} {kind} {key}\n")
    with pytest.raises(AgentError, match="is not known"):
        connections.to(access, "node 0")


def test_case_52_hashed_names_are_found(connections: Connections, access: Access, known: Path) -> None:
    """CASES 52: as HashKnownHosts writes them, also with a port."""
    subprocess.run(["ssh-keygen", "-H", "-f", known], check=True, capture_output=True)
    assert known.read_text().startswith("|1|")
    assert works(connections, access) == "root"


def test_a_revoked_key_is_refused(connections: Connections, access: Access, known: Path) -> None:
    known.write_text(known.read_text() + "@revoked * " + known.read_text().split(maxsplit=1)[1])
    with pytest.raises(AgentError, match=rf"{known}, line 2, revokes"):
        connections.to(access, "node 0")


def test_further_files_of_known_hosts(connections: Connections, access: Access, known: Path, tmp_path: Path) -> None:
    moved = tmp_path / "site_hosts"
    known.rename(moved)
    assert works(connections, replace(access, known_hosts=(moved,))) == "root"


def test_the_key_of_a_type_that_is_known_is_asked_for(
    tmp_path: Path, client_key: Path, home: Path, connections: Connections
) -> None:
    """A server with several keys is known by one of them: by that it must show who it is."""
    rsa = keygen(tmp_path / "rsa", "-t", "rsa", "-b", "2048")
    server = Sshd(tmp_path / "server", client_key.with_suffix(".pub"), settings=[f"HostKey {rsa}"])
    try:
        server.known(home / ".ssh" / "known_hosts", rsa)
        assert works(connections, Access(server.address, server.port, "root", client_key)) == "root"
        connections.close()
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("line", "name", "fits"),
    [
        ("host ssh-ed25519 AAAA", "host", True),
        ("HOST,other ssh-ed25519 AAAA", "host", True),
        ("[host]:2222 ssh-ed25519 AAAA", "[host]:2222", True),
        ("[host]:2222 ssh-ed25519 AAAA", "host", False),
        ("h?st ssh-ed25519 AAAA comment", "host", True),
        ("*,!host ssh-ed25519 AAAA", "host", False),
        ("[host]:22?? ssh-ed25519 AAAA", "[host]:2222", True),
        ("# host ssh-ed25519 AAAA", "host", False),
        ("host ssh-ed25519", "host", False),
        ("host ssh-ed25519 ????", "host", False),
        ("|1|rubbish ssh-ed25519 AAAA", "host", False),
    ],
)
def test_lines_of_known_hosts(line: str, name: str, fits: bool, tmp_path: Path) -> None:
    (tmp_path / "known").write_text(line + "\n")
    assert bool(known_hosts.entries(name, [tmp_path / "known", tmp_path / "missing"])) == fits


# -- the ssh configuration --------------------------------------------------------------------------------------------


def test_an_alias_of_the_ssh_configuration(
    connections: Connections, sshd: Sshd, known: Path, home: Path, client_key: Path
) -> None:
    elsewhere = home / "hosts of mine"
    known.rename(elsewhere)
    (home / ".ssh" / "more").write_text(f"Host alias\n  Port {sshd.port}\n  User tester\n")
    (home / ".ssh" / "config").write_text(
        f"Include more\nHost al*\n  HostName {sshd.address}\n  IdentityFile {client_key}\n"
        f'  UserKnownHostsFile "{elsewhere}"\n'
    )
    assert works(connections, Access("alias")) == "tester"
    assert works(connections, Access("alias", user="root")) == "root"


def test_a_file_that_is_included_ends_no_block_around_it(home: Path) -> None:
    (home / ".ssh" / "more").write_text("Host inner\n  Port 1\n")
    (home / ".ssh" / "config").write_text("Host outer\n  User a\n  Include more missing*\n  Port 2\n")
    [outer] = ssh_route.routes(Access("outer"))
    [inner] = ssh_route.routes(Access("inner"))
    assert (outer.port, outer.user, inner.port) == (2, "a", 1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("Host x\n  Port\n", "cannot be read: .*Port"),
        ("Host x\n  Port many\n", "'many' is no port"),
        (
            "Host x\n  ProxyCommand nc %h %p\n",
            "ProxyCommand .* not supported: name the hosts in between with ProxyJump",
        ),
        ("Host x\n  ProxyJump a:b:c\n", "ProxyJump that cannot be read: 'a:b:c'"),
        ("Host x\n  ProxyJump y\nHost y\n  ProxyJump x\n", "go round in a circle: .*x"),
        ("Include config\n", "included too deeply"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_an_error(config: str, message: str, home: Path) -> None:
    (home / ".ssh" / "config").write_text(config)
    with pytest.raises(AgentError, match=message):
        ssh_route.routes(Access("x"))


def test_a_configuration_that_is_named_must_be_there(home: Path) -> None:
    with pytest.raises(AgentError, match="/nowhere is no file"):
        ssh_route.routes(Access("x", config=Path("/nowhere")))


def test_one_jump_host_for_everything_is_itself_reached_directly(home: Path) -> None:
    (home / ".ssh" / "config").write_text("Host *\n  ProxyJump bastion\n")
    assert [hop.host for hop in ssh_route.routes(Access("node"))] == ["bastion", "node"]


def test_case_51_jump_hosts_have_the_ports_that_are_theirs(home: Path) -> None:
    """CASES 51: of ProxyJump's own words, or of the jump host's block; never the node's."""
    (home / ".ssh" / "config").write_text(
        "Host node\n  Port 1\n  User n\n  ProxyJump me@first:11,ssh://second,[::1]:33\n"
        "Host second\n  HostName other\n  Port 22222\n  User s\n"
    )
    hops = ssh_route.routes(Access("node"))
    assert [str(hop) for hop in hops] == ["me@[first]:11", "s@[other]:22222", f"{hops[2].user}@[::1]:33", "n@[node]:1"]


# -- jump hosts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def jump(tmp_path: Path, home: Path, client_key: Path) -> Iterator[Sshd]:
    server = Sshd(tmp_path / "jump", client_key.with_suffix(".pub"), address="127.0.0.3")
    yield server
    server.stop()


def test_case_51_a_node_behind_a_jump_host_on_another_port(
    connections: Connections, access: Access, jump: Sshd, known: Path, client_key: Path
) -> None:
    """CASES 51: ``jump`` of the inventory, with a port of its own; the connection to it is shared."""
    jump.known(known)
    through = replace(access, jump=Access(jump.address, jump.port, "tester", client_key))
    assert works(connections, through) == "root"
    assert works(connections, replace(through, user="tester")) == "tester"
    assert jump.logged("Accepted publickey for tester") == 1, "one connection to it for both"
    one = connections.to(through, "node 0")
    jump.stop()
    eventually(lambda: not one.alive, "the end of what went through it")


def test_case_51_proxyjump_of_the_ssh_configuration(
    connections: Connections, sshd: Sshd, jump: Sshd, known: Path, home: Path, client_key: Path
) -> None:
    """CASES 51: an alias for the jump host, whose block has the port."""
    jump.known(known)
    (home / ".ssh" / "config").write_text(
        f"Host node\n  HostName {sshd.address}\n  Port {sshd.port}\n  User root\n  ProxyJump door\n"
        f"Host door\n  HostName {jump.address}\n  Port {jump.port}\n  User tester\n"
        f"Host *\n  IdentityFile {client_key}\n"
    )
    assert works(connections, Access("node")) == "root"
    assert jump.logged("Accepted publickey for tester") == 1


def test_case_52_the_key_of_the_jump_host_is_checked_too(
    connections: Connections, access: Access, jump: Sshd, known: Path, client_key: Path, tmp_path: Path
) -> None:
    """CASES 52: an unknown and a changed jump host are refused, although the node is known."""
    through = replace(access, jump=Access(jump.address, jump.port, "root", client_key))
    with pytest.raises(
        AgentError, match=rf"the jump host of node 0 \(root@\[{jump.address}\]:{jump.port}\) is not known"
    ):
        connections.to(through, "node 0")
    jump.known(known, keygen(tmp_path / "other"))
    with pytest.raises(AgentError, match=r"the host key of the jump host of node 0 .* has changed"):
        connections.to(through, "node 0")
    assert jump.logged("Accepted") == 0


def test_a_node_that_its_jump_host_cannot_reach(
    connections: Connections, access: Access, jump: Sshd, known: Path, client_key: Path
) -> None:
    jump.known(known)
    through = replace(access, port=1, jump=Access(jump.address, jump.port, "root", client_key))
    with pytest.raises(AgentError, match=r"node 0 .* cannot be reached from the jump host of node 0: .*[Cc]onnect"):
        connections.to(through, "node 0")


# -- logging in -------------------------------------------------------------------------------------------------------


def test_an_encrypted_key(
    connections: Connections,
    access: Access,
    sshd: Sshd,
    tmp_path: Path,
    client_key: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locked = tmp_path / "locked"
    locked.write_bytes(client_key.read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", locked], check=True)
    monkeypatch.setenv("PHRASE", "open sesame")
    assert works(connections, replace(access, key=locked, passphrase=Secret(env="PHRASE"))) == "root"
    with pytest.raises(AgentError, match=f"key {locked} has a passphrase: name it as `passphrase`"):
        connections.to(replace(access, key=locked), "node 0")
    monkeypatch.setenv("PHRASE", "wrong")
    with pytest.raises(AgentError, match="passphrase is wrong") as caught:
        connections.to(replace(access, key=locked, passphrase=Secret(file=None, env="PHRASE"), user="tester"), "node 0")
    assert "sesame" not in str(caught.value)
    monkeypatch.delenv("PHRASE")
    with pytest.raises(AgentError, match="environment variable PHRASE is not set"):
        connections.to(replace(access, key=locked, passphrase=Secret(env="PHRASE"), user="tester"), "node 0")


def test_a_passphrase_for_a_key_that_has_none_does_no_harm(
    connections: Connections, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHRASE", "anything")
    assert works(connections, replace(access, passphrase=Secret(env="PHRASE"))) == "root"


@pytest.fixture
def ssh_agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An ssh-agent of the controller's user, without keys."""
    path = home / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    eventually(path.exists, "the ssh-agent")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield
    process.terminate()
    process.wait()


def test_a_key_of_the_ssh_agent(
    ssh_agent: None, connections: Connections, access: Access, client_key: Path, tmp_path: Path
) -> None:
    keyless = replace(access, key=None)
    with pytest.raises(AgentError, match="Tried: nothing: there is no key, and no ssh-agent with one"):
        connections.to(keyless, "node 0")
    subprocess.run(["ssh-add", "-q", keygen(tmp_path / "another")], check=True)
    with pytest.raises(AgentError, match=r"does not let us in\. Tried: the ssh-agent's another"):
        connections.to(keyless, "node 0")
    subprocess.run(["ssh-add", "-q", client_key], check=True)
    assert works(connections, keyless) == "root"


def test_an_encrypted_key_that_the_ssh_agent_has_needs_no_passphrase(
    ssh_agent: None, connections: Connections, access: Access, client_key: Path, tmp_path: Path
) -> None:
    subprocess.run(["ssh-add", "-q", client_key], check=True)
    locked = tmp_path / "locked"
    locked.write_bytes(client_key.read_bytes())
    locked.chmod(0o600)
    (tmp_path / "locked.pub").write_bytes(client_key.with_suffix(".pub").read_bytes())
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "sesame", "-f", locked], check=True)
    assert works(connections, replace(access, key=locked)) == "root"


def test_an_ssh_agent_that_has_gone_is_done_without(
    connections: Connections, access: Access, home: Path, client_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "gone"))
    (home / ".ssh" / "id_ed25519").write_bytes(client_key.read_bytes())
    assert works(connections, replace(access, key=None)) == "root"


def test_a_password(
    connections: Connections, access: Access, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORD", PASSWORD)
    keyless = replace(access, key=None, user="tester", password=Secret(env="WORD"))
    assert works(connections, keyless) == "tester"
    monkeypatch.setenv("WORD", "wrong")
    with pytest.raises(AgentError, match=r"does not let us in\. Tried: the password"):
        connections.to(replace(keyless, user="root"), "node 0")
    assert PASSWORD not in caplog.text


def test_a_key_that_is_not_let_in_names_it(connections: Connections, access: Access, tmp_path: Path) -> None:
    other = keygen(tmp_path / "other")
    with pytest.raises(AgentError, match=f"node 0 .* does not let us in. Tried: {other}"):
        connections.to(replace(access, key=other), "node 0")
    with pytest.raises(AgentError, match="key /nowhere cannot be read: No such file"):
        connections.to(replace(access, key=Path("/nowhere")), "node 0")


def test_nobody_listens(connections: Connections, access: Access) -> None:
    with pytest.raises(AgentError, match=r"node 0 \(root@\[127.0.0.1\]:1\) cannot be reached: Connection refused"):
        connections.to(replace(access, port=1), "node 0")
    with pytest.raises(AgentError, match=r"no\.such\.host\.invalid.* cannot be reached: "):
        connections.to(replace(access, host="no.such.host.invalid"), "node 0")


def test_the_environment_names_no_ssh_agent(home: Path) -> None:
    assert "SSH_AUTH_SOCK" not in os.environ
    assert ssh_route.routes(Access("x"))[0].agent is None

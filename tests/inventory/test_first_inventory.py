"""`chaos init`, `chaos inventory`: from Slurm's own words, an ssh configuration, a list of hosts, and the nodes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from cli_help import chaos
from sshd import Sshd, keygen, needs_sshd

from chaos.inventory.access import Access
from chaos.inventory.facts import Unreached, asking, parse, run_here
from chaos.inventory.load import load
from chaos.inventory.sources import SourceError, from_hosts, from_ssh_config, slurm_json, slurm_text

RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize("name", ["scontrol-22.05.txt", "scontrol-oneline-22.05.txt"])
def test_the_nodes_of_slurm_in_its_text(name: str) -> None:
    """Recorded from Slurm 22.05.8: `scontrol show nodes`, with and without `-o`."""
    nodes = slurm_text((RECORDED / name).read_text())
    assert [node.name for node in nodes[:2]] == ["n1", "n2"]
    assert nodes[0].accelerators is not None
    assert nodes[0].accelerators["gpu"] == (8, "h100")
    assert "train" in nodes[0].groups


def test_the_nodes_of_slurm_in_its_json() -> None:
    """Recorded from Slurm 22.05.8: `sinfo --json`, whose nodes are those of `scontrol show nodes --json`."""
    as_json = slurm_json((RECORDED / "sinfo-22.05.json").read_text())
    as_text = slurm_text((RECORDED / "scontrol-22.05.txt").read_text())
    assert [node.name for node in as_json] == [node.name for node in as_text]
    assert [node.accelerators for node in as_json] == [node.accelerators for node in as_text]


def test_the_hosts_of_an_ssh_configuration_without_its_patterns(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host included\n  HostName 10.0.0.7\n")
    config = tmp_path / "config"
    config.write_text(f"Include {tmp_path}/more\nHost alpha beta\n  User root\nHost *.example !x\n  Port 2222\n")
    assert [node.name for node in from_ssh_config(config)] == ["alpha", "beta", "included"]
    with pytest.raises(SourceError, match="No such file"):
        from_ssh_config(tmp_path / "none")


def test_a_list_of_hosts() -> None:
    assert [node.name for node in from_hosts("a,node[1-2]")] == ["a", "node1", "node2"]
    with pytest.raises(SourceError):
        from_hosts("a[")


def test_this_machine_tells_what_it_has() -> None:
    facts = asking(run_here)(Access("x", python=sys.executable))
    assert facts.kernel == os.uname().release
    assert facts.uid == os.getuid()


def test_a_machine_with_accelerators_and_nics(tmp_path: Path) -> None:
    """A tree as sysfs shows it; classes and vendors are those of the PCI ID database."""
    for address, vendor, kind in (
        ("0000:1a:00.0", "0x10de", "0x030200"),
        ("0000:1b:00.0", "0x10de", "0x030200"),
        ("0000:c1:00.0", "0x19e5", "0x120000"),
        ("0000:03:00.0", "0x1a03", "0x030000"),  # the server's own picture
    ):
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")
        (folder / "device").write_text("0x2330\n")
    facts = asking(run_here, str(tmp_path))(Access("x", python=sys.executable))
    assert [(each.kind, each.vendor, each.pci) for each in facts.accelerators] == [
        ("gpu", "nvidia", "0000:1a:00.0"),
        ("gpu", "nvidia", "0000:1b:00.0"),
        ("npu", "huawei", "0000:c1:00.0"),
    ]


@pytest.mark.parametrize("output", [b"", b"Welcome!\n", b"{broken\n", b'{"schema": "chaos.facts/1"}\n'])
def test_an_answer_that_is_none_is_told(output: bytes) -> None:
    with pytest.raises(Unreached):
        parse(output)


@needs_sshd
def test_init_asks_over_ssh_and_what_it_writes_is_valid(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    home = tmp_path / "controller"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    key = keygen(tmp_path / "key")
    server = Sshd(tmp_path / "server", key.with_suffix(".pub"))
    try:
        server.known(home / ".ssh" / "known_hosts")
        file = tmp_path / "inventory.yaml"
        words = ["init", str(file), "--hosts", "127.0.0.1,nowhere.invalid", "--user", "root", "--key", str(key)]
        words += ["--port", str(server.port)]
        told = chaos(*words, env={"HOME": str(home)})
        assert told.returncode == 0, told.stdout
        assert "2 nodes, 1 of them told what they have" in told.stdout
        assert "nowhere.invalid: not reached: " in told.stdout
        text = file.read_text()
        assert f"kernel {os.uname().release}" in text
        assert "# NOT REACHED: " in text
        assert [node.name for node in load(file, {}).nodes] == ["127.0.0.1", "nowhere.invalid"]
        again = chaos(*words, env={"HOME": str(home)})
        assert again.returncode == 2
        assert "is there already" in again.stdout
        assert file.read_text() == text, "nothing is lost"
    finally:
        server.stop()


def test_init_wants_one_source(tmp_path: Path) -> None:
    assert chaos("init", str(tmp_path / "x")).returncode == 2
    assert chaos("init", str(tmp_path / "x"), "--slurm", "--hosts", "a").returncode == 2


INVENTORY = "inventory: x\nnodes:\n  'n[1-2]': {{user: root, password: {{env: WORD}}, labels: {{rack: a}}}}\n"


def test_check_tells_what_is_missing_and_never_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(INVENTORY.format())
    good = chaos("inventory", "check", str(file), env={"WORD": "hunter2"})
    assert good.returncode == 0, good.stdout
    assert "hunter2" not in good.stdout
    bad = chaos("inventory", "check", str(file))
    assert bad.returncode == 1
    assert "MISSING: password of n[1-2]: environment variable WORD is not set" in bad.stdout
    as_json = json.loads(chaos("inventory", "check", str(file), "--json").stdout)
    assert [node["name"] for node in as_json["nodes"]] == ["n1", "n2"]
    file.write_text("inventory: x\nnods: {}\n")
    wrong = chaos("inventory", "check", str(file))
    assert wrong.returncode == 2
    assert "did you mean 'nodes'" in wrong.stdout


def test_show_selects(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(INVENTORY.format())
    told = json.loads(chaos("inventory", "show", str(file), "n2", "--json").stdout)
    assert [node["name"] for node in told["nodes"]] == ["n2"]
    assert chaos("inventory", "show", str(file), "m").returncode == 2


def test_the_schema_of_an_inventory_is_one() -> None:
    schema = json.loads(chaos("schema", "--inventory").stdout)
    assert schema["properties"]["nodes"]

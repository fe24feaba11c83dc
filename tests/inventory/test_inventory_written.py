"""What chaos init writes: valid whatever the nodes say, folded where they are alike; where its nodes come from."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from chaos.inventory.facts import Facts, FoundAccelerator, FoundNic, Unreached
from chaos.inventory.first import Asked, Common, ask_all, write
from chaos.inventory.load import loads
from chaos.inventory.sources import (
    Candidate,
    SourceError,
    from_hosts,
    from_ssh_config,
    slurm_json,
    slurm_nodes,
    slurm_text,
)

RECORDED = Path(__file__).parent / "recorded"


def facts(**more: Any) -> Facts:
    told: dict[str, Any] = {
        "hostname": "x",
        "kernel": "6.8.0",
        "machine": "x86_64",
        "python": "3.10.12",
        "uid": 1000,
        "accelerators": tuple(
            FoundAccelerator(kind="gpu", pci=f"0000:{bus}:00.0", vendor="nvidia", device="2330", model="NVIDIA H100")
            for bus in ("1a", "1b")
        ),
        "nics": (
            FoundNic(name="eth0", role="control", pci="0000:01:00.0"),
            FoundNic(name="rail0", role="data", rdma="mlx5_0", pci="0000:81:00.0"),
        ),
        "control": "it carries this connection",
    }
    return Facts(**(told | more))


def test_nodes_that_have_the_same_share_an_entry() -> None:
    asked = [Asked(Candidate(name), facts(hostname=name)) for name in ("n1", "n2", "n10", "n3")]
    text = write("pod", asked, Common(user="ops", port=2222, key=Path("/keys/a b")), "a test")
    assert text.count("nics:") == 1
    assert "  n[1-3,10]:\n" in text
    inventory = loads(text, {})
    assert [node.name for node in inventory.nodes] == ["n1", "n2", "n3", "n10"]
    node = inventory.nodes[0]
    assert (node.access.user, node.access.port, node.access.key) == ("ops", 2222, Path("/keys/a b"))
    assert node.gpus is not None
    assert (node.gpus.number, node.gpus.model, node.gpus.pci[1]) == (2, "NVIDIA H100", "0000:1b:00.0")
    assert {name: device.is_control for name, device in node.devices().items()} == {
        "gpu0": False,
        "gpu1": False,
        "eth0": True,
        "rail0": False,
    }
    assert "the user is not root" in text


def test_addresses_go_with_their_nodes() -> None:
    alike = [Asked(Candidate(f"n{i}", f"10.0.0.{i + 20}")) for i in range(1, 4)]
    crossed = [Asked(Candidate("x1", "10.1.0.9")), Asked(Candidate("x2", "10.1.0.8"))]
    text = write("pod", [*alike, *crossed], Common(), "a test")
    assert "address: 10.0.0.[21-23]" in text or 'address: "10.0.0.[21-23]"' in text
    found = {node.name: node.access.host for node in loads(text, {}).nodes}
    assert found == {"n1": "10.0.0.21", "n2": "10.0.0.22", "n3": "10.0.0.23", "x1": "10.1.0.9", "x2": "10.1.0.8"}


@pytest.mark.parametrize("evil", ["a\nnodes: {evil: {}}", 'q": {user: root}', "# x", "\x1b]0;t\x07", "\u2028b", "yes"])
def test_what_a_node_says_is_never_more_than_text(evil: str) -> None:
    gpu = FoundAccelerator(kind="gpu", pci="0000:1a:00.0", vendor="nvidia", device="2330", model=evil)
    asked = [
        Asked(Candidate("n1", note=evil), facts(hostname=evil, kernel=evil, accelerators=(gpu,))),
        Asked(Candidate("n2"), problem=evil),
    ]
    text = write(evil, asked, Common(), evil)
    assert all(line.isprintable() for line in text.split("\n"))
    try:
        inventory = loads(text, {})
    except ValueError as refused:  # a name or model that the document does not allow is told, not obeyed
        assert "write text of one line" in str(refused)
    else:
        assert inventory.name == evil
        assert [node.name for node in inventory.nodes] == ["n1", "n2"]


def test_why_a_node_was_not_reached_stands_above_it() -> None:
    def ask(access: Any) -> Facts:
        if access.host == "n2":
            raise Unreached("connection refused")
        return facts()

    heard: list[str] = []
    asked = ask_all(from_hosts("n[1-3]"), Common(), ask, lambda one: heard.append(one.candidate.name))
    assert sorted(heard) == ["n1", "n2", "n3"]
    text = write("pod", asked, Common(), "a test")
    lines = text.splitlines()
    assert lines[lines.index("  n2:") - 1] == "  # NOT REACHED: connection refused"
    assert "2 of 3 nodes told what they have" in text


# Slurm


def test_the_json_of_newer_slurms() -> None:
    """By the schema of v0.0.39 and later (Slurm 23.02 to 24.11): state and features are lists, gres names sockets."""
    node = {
        "name": "gpu1",
        "address": "gpu1",
        "hostname": "gpu1",
        "gres": "gpu:fake1:1(S:0),gpu:fake2:1(S:0),npu:4",
        "features": ["hgx"],
        "active_features": ["hgx"],
        "partitions": ["debug"],
        "state": ["IDLE", "DRAIN"],
        "reason": "",
    }
    (found,) = slurm_json(json.dumps({"nodes": [node]}))
    assert found.address is None
    assert found.accelerators == {"gpu": (2, None), "npu": (4, None)}
    assert (found.groups, found.labels, found.note) == (("debug",), {"feature-hgx": "yes"}, "Slurm: IDLE+DRAIN")


def test_a_slurm_whose_scontrol_knows_no_json_is_asked_for_text() -> None:
    """As scontrol of 22.05.8 answers."""
    calls: list[list[str]] = []

    def show(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        calls.append(arguments)
        if "--json" in arguments:
            return subprocess.CompletedProcess(arguments, 1, "", "scontrol: unrecognized option '--json'\n")
        return subprocess.CompletedProcess(arguments, 0, (RECORDED / "scontrol-22.05.txt").read_text(), "")

    assert [node.name for node in slurm_nodes(show)] == ["n1", "n2", "n3", "n4"]
    assert calls == [["show", "nodes", "--json"], ["show", "nodes"]]


def test_a_slurm_that_does_not_answer_is_told() -> None:
    def show(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(arguments, 1, "", "slurm_load_node error: Unable to contact controller\n")

    with pytest.raises(SourceError, match="Unable to contact controller"):
        slurm_nodes(show)


@pytest.mark.parametrize("text", ["", "[]", '{"nodes": [{}]}', '{"nodes": {}}'])
def test_json_that_is_not_slurms_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="Slurm's JSON cannot be read"):
        slurm_json(text)


@pytest.mark.parametrize("name", ["scontrol-22.05.txt", "scontrol-oneline-22.05.txt"])
def test_a_remark_in_slurms_text_is_not_taken_for_a_field(name: str) -> None:
    """What an administrator has written as the reason: as recorded, and with words that look like fields."""
    recorded = (RECORDED / name).read_text()
    assert slurm_text(recorded)[2].note == "Slurm: IDLE+DRAIN, bad nvlink on GPU 5, see Owner=ops"
    third = slurm_text(recorded.replace("Owner=ops", "State=DOWN Gres=gpu:9 NodeAddr=10.6.6.6"))[2]
    assert third.note == "Slurm: IDLE+DRAIN, bad nvlink on GPU 5, see State=DOWN Gres=gpu:9 NodeAddr=10.6.6.6"
    assert (third.address, third.accelerators) == ("127.0.0.1", {"gpu": (8, "h100")})


# The ssh configuration


def test_hosts_that_others_jump_through_are_no_nodes(tmp_path: Path) -> None:
    included = tmp_path / "more"
    included.write_text("Host inner\n  HostName 10.0.0.7\n")
    config = tmp_path / "config"
    config.write_text(
        f"Host gate\n  HostName gate.example\nHost n1 n2\n  Include {included}\n  ProxyJump ops@gate:2222\n"
        "Host lab-*\n  User x\n"
    )
    found = {node.name: node.note for node in from_ssh_config(config)}
    assert found == {"n1": "ProxyJump ops@gate:2222", "n2": "ProxyJump ops@gate:2222", "inner": "HostName 10.0.0.7"}


def test_files_that_include_each_other_end(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Include {config}\nHost a\n")
    with pytest.raises(SourceError, match="include each other"):
        from_ssh_config(config)

"""What a node says of itself, read from a tree as sysfs and procfs show it, and what is made of strange answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.inventory.access import Access
from chaos.inventory.facts import Facts, Unreached, asking, parse, run_here, script
from chaos.inventory.node_facts import MARK

ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n{0}\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n"
)
ASCEND = ("0x19e5", "0x120000")


class Tree:
    """A root of files such as a node has them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/net").mkdir(parents=True)
        (root / "sys/class/net").mkdir(parents=True)

    def pci(self, address: str, vendor: str, kind: str, *, virtual: bool = False) -> Path:
        folder = self.root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, value in (("vendor", vendor), ("class", kind), ("device", "0x2330")):
            (folder / name).write_text(f"{value}\n")
        if virtual:
            (folder / "physfn").symlink_to(folder)
        return folder

    def nic(self, name: str, address: str | None, *, lower: tuple[str, ...] = (), speed: str = "400000") -> Path:
        folder = self.root / "sys/class/net" / name
        folder.mkdir()
        if address is not None:
            (folder / "device").symlink_to(self.pci(address, "0x15b3", "0x020000"))
        for below in lower:
            (folder / f"lower_{below}").symlink_to(self.root / "sys/class/net" / below)
        (folder / "operstate").write_text("up\n")
        (folder / "speed").write_text(f"{speed}\n")
        return folder

    def facts(self, python: str = sys.executable) -> Facts:
        return asking(run_here, str(self.root))(Access("x", python=python))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    return Tree(tmp_path / "root")


def roles(facts: Facts) -> dict[str, str]:
    return {nic.name: nic.role for nic in facts.nics}


def test_what_is_below_the_default_route_is_control_down_to_the_hardware(tree: Tree) -> None:
    tree.nic("eth0", "0000:01:00.0")
    tree.nic("eth1", "0000:01:00.1")
    (tree.nic("bond0", None, lower=("eth0", "eth1")) / "bonding").mkdir()
    tree.nic("bond0.7", None, lower=("bond0",))
    tree.nic("rail0", "0000:81:00.0")
    (tree.root / "proc/net/route").write_text(ROUTES.format("bond0.7"))
    facts = tree.facts()
    # A VLAN is no hardware: it is not listed, and what it stands on is control all the same.
    assert roles(facts) == {"bond0": "control", "eth0": "control", "eth1": "control", "rail0": "data"}
    assert facts.control == "it has the default route"


def test_the_connection_that_asks_says_more_than_the_default_route(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.nic("mgmt", "0000:01:00.0")
    tree.nic("data0", "0000:02:00.0")
    (tree.root / "proc/net/route").write_text(ROUTES.format("data0"))
    (tree.root / "proc/net/if_inet6").write_text("fd00000000000000000000000000000a 02 40 00 80 mgmt\n")
    monkeypatch.setenv("SSH_CONNECTION", "fd00::1 51000 fd00::a 22")
    facts = tree.facts()
    assert roles(facts) == {"mgmt": "control", "data0": "data"}
    assert facts.control == "it carries this connection"


def test_where_nothing_tells_what_reaches_the_node_no_nic_is_a_target(tree: Tree) -> None:
    tree.nic("a", "0000:01:00.0")
    tree.nic("b", "0000:02:00.0")
    facts = tree.facts()
    assert roles(facts) == {"a": "control", "b": "control"}
    assert facts.control == "what reaches the node is not known"


def test_a_nic_tells_its_place_its_rdma_device_and_its_speed(tree: Tree) -> None:
    tree.nic("rail0", "0000:81:00.0")
    tree.nic("down", "0000:82:00.0", speed="-1")
    tree.nic("veth0", None)
    device = tree.root / "sys/class/infiniband/mlx5_3/device/net/rail0"
    device.mkdir(parents=True)
    down, rail = tree.facts().nics  # a veth is no hardware
    assert (rail.name, rail.pci, rail.rdma, rail.mbit, rail.state) == ("rail0", "0000:81:00.0", "mlx5_3", 400000, "up")
    assert (down.name, down.rdma, down.mbit) == ("down", None, None)


def test_virtual_functions_are_parts_of_another_device_and_not_counted(tree: Tree) -> None:
    tree.pci("0000:c1:00.0", *ASCEND)
    tree.pci("0000:c1:00.1", *ASCEND, virtual=True)
    assert [each.pci for each in tree.facts().accelerators] == ["0000:c1:00.0"]


def test_the_model_is_what_the_driver_calls_it(tree: Tree) -> None:
    tree.pci("0000:1a:00.0", "0x10de", "0x030200")
    information = tree.root / "proc/driver/nvidia/gpus/0000:1a:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 120\n")
    (gpu,) = tree.facts().accelerators
    assert (gpu.kind, gpu.vendor, gpu.device, gpu.model) == ("gpu", "nvidia", "2330", "NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13"])
def test_older_and_newer_pythons_tell_the_same(tree: Tree, version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"NOT RUN: needs a python{version} on this machine")
    tree.nic("rail0", "0000:81:00.0")
    there, here = tree.facts(python), tree.facts()
    assert there.python.startswith(f"{version}.")
    assert there.model_copy(update={"python": ""}) == here.model_copy(update={"python": ""})


def python_of(version: str) -> str | None:
    """An interpreter that works: one on the path, or one that pyenv has built."""
    shims = shutil.which("pyenv")
    known = [shutil.which(f"python{version}")]
    if shims is not None:
        root = subprocess.run([shims, "root"], capture_output=True, text=True, check=False).stdout.strip()
        known += map(str, sorted(Path(root).glob(f"versions/{version}.*/bin/python3")))
    for python in filter(None, known):
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None


def test_the_program_that_is_sent_brings_nothing_along() -> None:
    """A plain interpreter runs it, in an empty folder, with an empty environment and nothing but its own library."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script()], capture_output=True, cwd="/", env={}, check=True, timeout=60
    )
    assert json.loads(done.stdout)["hostname"] == os.uname().nodename
    assert done.stderr == b""


ANSWER = {
    "schema": MARK,
    "hostname": "n",
    "kernel": "6.1",
    "machine": "x86_64",
    "python": "3.9.2",
    "uid": 0,
    "accelerators": [],
    "nics": [],
    "control": "x",
}


def test_what_a_login_shell_says_before_the_answer_is_passed_over() -> None:
    noise = b"Welcome to n!\n{ not ours }\n"
    assert parse(noise + json.dumps(ANSWER | {"new": 1}).encode() + b"\n").hostname == "n"


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (json.dumps(ANSWER | {"uid": "0"}).encode(), "its answer cannot be read: uid: "),
        (json.dumps(ANSWER | {"nics": [{"name": "a", "role": "both"}]}).encode(), "nics.0.role"),
        (b"\xff\xfe\x1b[31mgo away\n", "but said: "),
        (b"x" * 100_000, "but said: x"),
    ],
)
def test_a_strange_answer_is_one_short_printable_line(output: bytes, said: str) -> None:
    with pytest.raises(Unreached) as told:
        parse(output)
    assert said in str(told.value)
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 300


def test_a_node_without_python_says_so_and_not_what_was_sent() -> None:
    with pytest.raises(Unreached, match="no-such-python: No such file or directory"):
        asking(run_here)(Access("x", python="no-such-python"))

    def repeats_it_all(_access: Access, argv: object, _timeout: float) -> bytes:
        raise Unreached(f"{argv} did not end within 30 s")

    with pytest.raises(Unreached, match="did not end within 30 s") as told:
        asking(repeats_it_all)(Access("x"))
    assert len(str(told.value)) < 400

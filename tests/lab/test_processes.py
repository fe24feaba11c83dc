"""Processes of a lab: where they run, with what, how they end; and the power of the nodes below them."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_help import alive_in, eventually, path

from chaos.lab.cluster import Lab
from chaos.lab.errors import LabError
from chaos.lab.topology import LabSpec

pytestmark = pytest.mark.lab

SLEEP = ["/bin/sleep", "1000"]
TELL = """
import json, os
print(json.dumps([dict(os.environ), os.getcwd(), os.getpid(), os.stat('/proc/self/ns/net').st_ino]))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.up(LabSpec(nodes=2, gpus=2), tmp_path_factory.mktemp("processes") / "lab") as it:
        yield it


def tell(lab: Lab, tmp_path: Path, **where: int | None) -> tuple[dict[str, str], str, int, int]:
    done = lab.run([sys.executable, "-c", TELL], env={"MINE": "ü 1", "PATH": "/bin"}, cwd=str(tmp_path), **where)
    env, folder, pid, netns = json.loads(done.stdout)
    assert folder == str(tmp_path)
    assert env["MINE"] == "ü 1"
    assert "HOME" not in env, "the environment is what was given, not the keeper's"
    return env, folder, pid, netns


def test_a_process_on_a_node_knows_its_node_and_its_devices(lab: Lab, tmp_path: Path) -> None:
    env, _, pid, netns = tell(lab, tmp_path, node=1)
    node = lab.show()["nodes"][1]
    assert (env["CHAOS_NODE"], env["CHAOS_STATE"]) == ("1", node["state"])
    assert "CHAOS_GPU" not in env
    assert set(json.loads(env["CHAOS_LAB_NETNS"])) == {"gpu0", "gpu1", "nvswitch"}
    assert netns == node["netns"]
    assert 1 < pid < 1000, "as the node numbers its processes"


def test_a_process_on_a_gpu_is_in_that_gpus_network(lab: Lab, tmp_path: Path) -> None:
    found = {}
    for gpu in (0, 1):
        env, _, _, found[gpu] = tell(lab, tmp_path, node=0, gpu=gpu)
        assert (env["CHAOS_NODE"], env["CHAOS_GPU"]) == ("0", str(gpu))
        places = json.loads(env["CHAOS_LAB_NETNS"])
        seen = lab.run(["/usr/bin/stat", "-Lc", "%i", places[f"gpu{gpu}"]], node=0)
        assert int(seen.stdout) == found[gpu], "the paths that a node's processes are told lead to the GPUs"
    assert len({*found.values(), lab.show()["nodes"][0]["netns"]}) == 3


def test_a_process_on_the_head_is_on_no_node(lab: Lab, tmp_path: Path) -> None:
    env, *_ = tell(lab, tmp_path)
    assert not [name for name in env if name.startswith("CHAOS")]


def test_a_node_has_its_own_boot_id_host_name_and_process_table(lab: Lab) -> None:
    script = "cat /proc/sys/kernel/random/boot_id /proc/sys/kernel/hostname; ls /proc | grep -c '^[0-9]'"
    boot, host, processes = lab.run(["/bin/sh", "-c", script], node=1).stdout.decode().split()
    assert boot == lab.show()["nodes"][1]["boot_id"]
    assert boot != lab.show()["nodes"][0]["boot_id"]
    assert host == "node1"
    assert int(processes) < 10


@pytest.mark.parametrize("where", [{}, {"node": 0}, {"node": 0, "gpu": 1}], ids=["head", "node", "gpu"])
def test_exit_codes_and_signals_come_back(lab: Lab, where: dict[str, int]) -> None:
    assert lab.run(["/bin/sh", "-c", "exit 7"], **where).returncode == 7
    assert lab.run(["true"], **where).returncode == 0, "the command is looked up in PATH"
    process = lab.spawn(SLEEP, **where)
    assert process.poll() is None
    process.signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    process.signal(signal.SIGTERM)  # it has ended: nothing happens


def test_a_signal_reaches_the_children_of_a_process_too(lab: Lab) -> None:
    pidns = lab.show()["nodes"][0]["pidns"]
    before = len(alive_in(pidns))
    process = lab.spawn(["/bin/sh", "-c", "sleep 1000 & sleep 1000; true"], node=0)
    eventually(lambda: len(alive_in(pidns)) == before + 3, "the shell's children")
    process.signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    eventually(lambda: len(alive_in(pidns)) == before, "the end of the children")


def test_terminate_kills_what_does_not_listen(lab: Lab) -> None:
    reader, writer = os.pipe()
    deaf = "trap '' TERM; echo ready; while :; do sleep 0.01; done"
    process = lab.spawn(["/bin/sh", "-c", deaf], stdout=writer, node=0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.readline() == b"ready\n"
    process.terminate(grace=0.1)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("where", [{}, {"node": 0}, {"node": 0, "gpu": 0}], ids=["head", "node", "gpu"])
@pytest.mark.parametrize(
    ("argv", "cwd", "message"),
    [
        (["no-such-command"], "/", "no-such-command: No such file or directory"),
        (["/etc/passwd"], "/", "/etc/passwd: Permission denied"),
        (["true"], "/no/such/folder", "/no/such/folder: No such file or directory"),
        ([], "/", "no command: "),
        (["echo", "a\0b"], "/", "echo: embedded null byte"),
    ],
)
def test_what_cannot_be_executed_says_why(
    lab: Lab, where: dict[str, int], argv: list[str], cwd: str, message: str
) -> None:
    with pytest.raises(LabError, match=message):
        lab.spawn(argv, cwd=cwd, **where)
    assert lab.run(["true"], **where).returncode == 0


@pytest.mark.parametrize("where", [{"node": 2}, {"node": -1}, {"node": 0, "gpu": 2}, {"node": 0, "gpu": -1}])
def test_a_place_that_is_not_there_is_refused_and_harms_no_node(lab: Lab, where: dict[str, int]) -> None:
    boots = [node["boot_id"] for node in lab.show()["nodes"]]
    with pytest.raises(LabError, match=r"there is no (node|GPU) -?\d"):
        lab.spawn(["true"], **where)
    assert [(node["power"], node["boot_id"]) for node in lab.show()["nodes"]] == [("on", boot) for boot in boots]
    if "gpu" not in where:
        with pytest.raises(LabError, match="there is no node"):
            lab.power(where["node"], "off")
        with pytest.raises(LabError, match="there is no node"):
            lab.namespaces(where["node"])


def test_a_message_that_is_too_long_is_refused_and_the_lab_stays(lab: Lab) -> None:
    with pytest.raises(ValueError, match="at most"):
        lab.spawn(["true"], env={"LONG": "x" * 300_000})
    with pytest.raises(LabError, match="unknown request 'dance'"):
        lab.request({"op": "dance"})
    with pytest.raises(LabError, match="cannot do this"):
        lab.request({"no": "op"})
    assert lab.run(["true"], node=0).returncode == 0


def test_a_client_that_leaves_does_not_end_its_process(lab: Lab) -> None:
    pidns = lab.show()["nodes"][0]["pidns"]
    process = lab.spawn(SLEEP, node=0)
    process._sock.close()
    assert lab.run(["/bin/kill", "-0", str(process.pid)], node=0).returncode == 0
    lab.run(["/bin/kill", "-9", str(process.pid)], node=0)
    eventually(lambda: len(alive_in(pidns)) == 1, "the end of the process")
    assert lab.show()["nodes"][0]["power"] == "on"


def test_power_off_ends_everything_on_the_node_and_tells_who_waits(lab: Lab) -> None:
    pidns = lab.show()["nodes"][0]["pidns"]
    processes = [lab.spawn(SLEEP, node=0), lab.spawn(SLEEP, node=0, gpu=1)]
    elsewhere = lab.spawn(SLEEP, node=1)
    codes: list[int | None] = []
    waiter = threading.Thread(target=lambda: codes.extend(process.wait() for process in processes))
    waiter.start()
    first = lab.power(0, "off")
    assert first["power"] in ("going off", "off")
    waiter.join()
    assert codes == [-signal.SIGKILL] * 2
    lab.wait_power(0, "off")
    assert alive_in(pidns) == []
    assert lab.power(0, "off")["switched_ns"] == first["switched_ns"], "off again changes nothing"
    with pytest.raises(LabError, match="node 0 is off"):
        lab.spawn(["true"], node=0)
    with pytest.raises(LabError, match="node 0 is off"):
        lab.namespaces(0)
    assert elsewhere.poll() is None, "other nodes notice nothing"
    elsewhere.signal(signal.SIGKILL)
    elsewhere.wait()
    lab.power(0, "on")


def test_a_boot_is_a_new_boot_with_a_network_that_works(lab: Lab) -> None:
    before = lab.show()["nodes"][1]
    assert lab.power(1, "on")["boot_id"] == before["boot_id"], "on when it is on changes nothing"
    (Path(before["state"]) / "kept").write_text("over the boot")
    lab.power(1, "off")
    lab.wait_power(1, "off")
    answer = lab.power(1, "on")
    after = lab.show()["nodes"][1]
    assert answer["boot_id"] == after["boot_id"] != before["boot_id"]
    assert after["boots"] == before["boots"] + 1
    assert {after["pidns"], after["netns"]}.isdisjoint({before["pidns"], before["netns"]})
    assert (Path(after["state"]) / "kept").read_text() == "over the boot"
    with path(lab, 0, 1, node=1) as nvlink:
        assert eventually(nvlink.open, "a datagram over the new NVSwitch")
    # Nobody listens there: the refusal proves that the datagram went there and the answer back.
    reach = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('10.77.1.10', 9)); s.settimeout(20)"
    answer = lab.run([sys.executable, "-c", f"{reach}; s.send(b'x'); s.recv(1)"], node=0, gpu=0)
    assert b"ConnectionRefusedError" in answer.stdout


def test_a_node_whose_first_process_dies_is_off(lab: Lab) -> None:
    os.kill(lab_pid(lab, 1), signal.SIGKILL)
    lab.wait_power(1, "off")
    lab.power(1, "on")
    assert lab.run(["true"], node=1).returncode == 0


def lab_pid(lab: Lab, node: int) -> int:
    """The node's PID 1 as this machine numbers it."""
    return min(alive_in(lab.show()["nodes"][node]["pidns"]))


def test_namespaces_are_handed_over(lab: Lab) -> None:
    fds = lab.namespaces(0)
    try:
        assert list(fds) == ["pid", "mnt", "uts", "net", "gpu0", "gpu1", "nvswitch"]
        assert os.fstat(fds["pid"]).st_ino == lab.show()["nodes"][0]["pidns"]
        assert not any(os.get_inheritable(fd) for fd in fds.values())
    finally:
        for fd in fds.values():
            os.close(fd)

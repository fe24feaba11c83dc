"""A lab ends with whoever made it, and nothing of it is left; or it stays, under a name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_help import alive_in, eventually

from chaos.lab import cluster
from chaos.lab.client import LabClient
from chaos.lab.cluster import Lab
from chaos.lab.errors import LabError
from chaos.lab.namespace import all_namespaces
from chaos.lab.topology import LabSpec

pytestmark = pytest.mark.lab

SPEC = LabSpec(nodes=2, gpus=2)
SLEEP = ["/bin/sleep", "1000"]


class Traces:
    """The namespaces of a lab that is up, and whether anything of them is left later."""

    def __init__(self, lab: LabClient) -> None:
        shown = lab.show()
        self.namespaces: set[str] = set()
        self._pidns = [node["pidns"] for node in shown["nodes"]]
        for node in range(len(shown["nodes"])):
            fds = lab.namespaces(node)
            self.namespaces |= {str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in fds.values()}
            for fd in fds.values():
                os.close(fd)

    def left(self) -> set[str]:
        return self.namespaces & all_namespaces()

    def processes(self) -> list[int]:
        return [pid for pidns in self._pidns for pid in alive_in(pidns)]


def busy(lab: Lab) -> Traces:
    """Processes in every corner of the lab."""
    for where in ({}, {"node": 0}, {"node": 0, "gpu": 0}, {"node": 1, "gpu": 1}):
        lab.spawn(SLEEP, **where)
    traces = Traces(lab)
    assert len(traces.namespaces) == 2 * (3 + 1 + 2 + 1)
    assert traces.left() == traces.namespaces
    assert len(traces.processes()) == 5
    return traces


def test_close_leaves_nothing(tmp_path: Path) -> None:
    with Lab.up(SPEC, tmp_path / "lab") as lab:
        traces = busy(lab)
    assert (traces.processes(), traces.left()) == ([], set())
    lab.close()
    with pytest.raises(LabError, match="no lab answers in"):
        lab.show()


def test_sigkill_of_the_keeper_leaves_nothing(tmp_path: Path) -> None:
    with Lab.up(SPEC, tmp_path / "lab") as lab:
        traces = busy(lab)
        waiting = lab.spawn(SLEEP, node=1)
        lab.kill()
        assert waiting.wait() == -signal.SIGKILL, "who waits for a process is told"
    assert traces.processes() == []
    eventually(lambda: not traces.left(), "the end of the namespaces")


def test_sigkill_of_the_outer_process_leaves_nothing(tmp_path: Path) -> None:
    with Lab.up(SPEC, tmp_path / "lab") as lab:
        traces = busy(lab)
        lab._outer.kill()
        eventually(lambda: not traces.processes() and not traces.left(), "the end of the lab")


CLIENT = """
import sys, time
from pathlib import Path
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
lab = Lab.up(LabSpec(2, 2), Path(sys.argv[1]))
lab.spawn(["/bin/sleep", "1000"], node=0)
print("up", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_lab_ends_with_the_process_that_made_it(tmp_path: Path, number: int) -> None:
    maker = subprocess.Popen([sys.executable, "-c", CLIENT, str(tmp_path / "lab")], stdout=subprocess.PIPE)
    assert maker.stdout is not None
    with maker:
        assert maker.stdout.readline() == b"up\n"
        traces = Traces(LabClient(tmp_path / "lab"))
        assert traces.processes()
        maker.send_signal(number)
    eventually(lambda: not traces.processes() and not traces.left(), "the end of the lab")


def test_many_boots_leave_no_namespace(tmp_path: Path) -> None:
    with Lab.up(LabSpec(1, 2), tmp_path / "lab") as lab:
        for _ in range(5):
            traces = Traces(lab)
            lab.power(0, "off")
            lab.wait_power(0, "off")
            eventually(lambda traces=traces: not traces.left(), "the end of the former boot's namespaces")
            lab.power(0, "on")


def test_a_folder_far_down_will_do(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["a-folder-of-a-run"] * 8) / "lab"
    assert len(str(folder)) > 108
    with Lab.up(LabSpec(1, 1), folder) as lab:
        assert LabClient(folder).spec == LabSpec(1, 1)
        assert lab.run(["true"], node=0).returncode == 0


def test_a_folder_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab/node0").write_text("a file is in the way")
    with pytest.raises(LabError, match=r"the lab cannot be built: FileExistsError.*node0"):
        Lab.up(LabSpec(1, 1), tmp_path / "lab")


# -- labs that stay ---------------------------------------------------------------------------------------------------


@pytest.fixture
def labs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "run" / "labs"
    monkeypatch.setattr(cluster, "labs_folder", lambda: folder)
    yield folder
    for name in cluster.labs():
        cluster.down(name)


STAYER = """
import sys
from pathlib import Path
from chaos.lab import cluster
from chaos.lab.topology import LabSpec
cluster.labs_folder = lambda: Path(sys.argv[1])
cluster.up("mine", LabSpec(1, 2, 1))
"""


def test_a_lab_that_stays_outlives_its_maker_until_it_is_taken_down(labs_folder: Path) -> None:
    subprocess.run([sys.executable, "-c", STAYER, str(labs_folder)], check=True)
    assert cluster.labs() == ["mine"]
    lab = cluster.find("mine")
    assert lab.spec == LabSpec(1, 2, 1)
    assert lab.run(["true"], node=0, gpu=1).returncode == 0
    lab.spawn(SLEEP, node=0)
    traces = Traces(lab)
    cluster.down("mine")
    assert (traces.processes(), traces.left()) == ([], set()), "down means that it is down"
    assert cluster.labs() == []
    assert not labs_folder.exists()
    with pytest.raises(LabError, match=r"there is no lab 'mine' \(up: none\): chaos lab up mine makes it"):
        cluster.find("mine")


def test_a_name_is_taken_once_and_a_dead_labs_name_is_free(labs_folder: Path) -> None:
    first = cluster.up("mine", LabSpec(1, 1))
    with pytest.raises(LabError, match="'mine' is up already: chaos lab down mine takes it down"):
        cluster.up("mine", LabSpec(1, 1))
    (labs_folder / "mine/node0/old").write_text("of the first lab")
    first.kill()
    cluster.up("mine", LabSpec(2, 1))
    assert cluster.find("mine").spec == LabSpec(2, 1)
    assert not (labs_folder / "mine/node0/old").exists()
    with pytest.raises(LabError, match=r"there is no lab 'other' \(up: mine\)"):
        cluster.down("other")


def test_a_dead_lab_can_be_taken_down(labs_folder: Path) -> None:
    cluster.up("mine", LabSpec(1, 1)).kill()
    cluster.down("mine")
    assert cluster.labs() == []


def test_a_lab_that_stays_is_closed_by_its_maker_too(labs_folder: Path) -> None:
    lab = cluster.up("mine", LabSpec(1, 1))
    traces = Traces(lab)
    lab.close()
    assert (traces.processes(), traces.left()) == ([], set())


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a b", "-x", "x" * 65, "ä"])
def test_what_is_no_name_is_refused(labs_folder: Path, name: str) -> None:
    with pytest.raises(LabError, match="is no name for a lab"):
        cluster.up(name, LabSpec(1, 1))
    with pytest.raises(LabError, match="is no name for a lab"):
        cluster.find(name)
    assert not labs_folder.exists()


# -- who may ----------------------------------------------------------------------------------------------------------


def test_where_labs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert cluster.labs_folder() == Path("/run/chaos/labs")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert cluster.labs_folder() == Path("/run/user/1000/chaos/labs")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cluster.labs_folder() == Path("/home/somebody/.local/state/chaos/labs")


def test_a_keeper_that_does_not_speak_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = cluster.wire.pair()
    monkeypatch.setattr(cluster, "START_TIMEOUT", 0.01)
    with ours, theirs, pytest.raises(LabError, match=r"not up after 0\.01 s: set CHAOS_DEBUG=1"):
        cluster._await_ready(ours)
    ours, theirs = cluster.wire.pair()
    theirs.close()
    with ours, pytest.raises(LabError, match="died while it started"):
        cluster._await_ready(ours)

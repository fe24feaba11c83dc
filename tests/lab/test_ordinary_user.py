"""A lab needs no root: an ordinary user makes one in a user namespace; where the kernel forbids it the error says what
to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyroute2
import pytest
from lab_help import eventually

import chaos
import injectors

pytestmark = pytest.mark.lab

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]

LIFE = """
import os, sys
from pathlib import Path
from chaos.lab.cluster import Lab
from chaos.lab.namespace import all_namespaces
from chaos.lab.topology import LabSpec
assert os.geteuid() != 0
with Lab.up(LabSpec(2, 2), Path(sys.argv[1])) as lab:
    up = all_namespaces()
    assert lab.run(["/bin/sh", "-c", "id -u"], node=0).stdout == b"0\\n"
    boot = lab.show()["nodes"][1]["boot_id"]
    process = lab.spawn(["/bin/sleep", "1000"], node=1)
    lab.power(1, "off")
    assert process.wait() == -9
    lab.wait_power(1, "off")
    assert lab.power(1, "on")["boot_id"] != boot
    reach = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('10.77.1.10', 9)); s.settimeout(20);"
    answer = lab.run([sys.executable, "-c", reach + "s.send(b'x'); s.recv(1)"], node=0, gpu=0)
    assert b"ConnectionRefusedError" in answer.stdout, answer.stdout
print("lived")
"""

FAULTS = """
import os, queue, sys, time
from pathlib import Path
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from chaos.transport import lab as transport
assert os.geteuid() != 0
ORDERS = [("fabric:Blackhole", {"source": "gpu0", "to": "gpu1"}, {"node": 0}),
          ("pcie:Throttle", {"rate": 50e6}, {"node": 0, "gpu": 1})]
with Lab.up(LabSpec(1, 2), Path(sys.argv[1])) as lab:
    events = queue.SimpleQueue()
    agent = transport.start(lab, 0, Path(sys.argv[1] + ".log"), events.put)
    for number, (implementation, params, target) in enumerate(ORDERS):
        at = agent.clock.theirs(time.monotonic_ns())
        agent.request("arm", fault=f"f{number}", implementation="injectors." + implementation, params=params,
                      target=target, duration=0.3, at=at, owner="a-run")
        agent.request("fire", fault=f"f{number}", at=0)
        while (event := events.get(timeout=30))["event"] != "undone":
            if event["event"] == "witness":
                print(event["phase"], event["effective"])
        print(event["residue"])
    agent.close()
"""

REFUSED = """
import sys
from pathlib import Path
from chaos.lab.cluster import Lab
from chaos.lab.errors import LabError
from chaos.lab.topology import LabSpec
try:
    Lab.up(LabSpec(1, 1), Path(sys.argv[1]))
except LabError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that an ordinary user can read, with the code and what it needs; pytest's own folders are private."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-ordinary-"))
    try:
        for package in (chaos, injectors, pyroute2):
            source = Path(str(package.__file__)).parent
            shutil.copytree(source, folder / "code" / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "work").mkdir()
        folder.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(folder / "work", NOBODY, NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def ordinary() -> list[str]:
    """A command that runs Python as an ordinary user."""
    if os.geteuid() != 0:
        return [sys.executable]
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is not installed: root cannot become an ordinary user here")
    tried = []
    for python in (sys.executable, "/usr/bin/python3"):
        # Twice: root's rights are not yet lost when setpriv executes the first.
        once_more = (
            "import subprocess, sys; sys.exit(sys.version_info < (3, 11) or subprocess.call([sys.executable, '-V']))"
        )
        done = subprocess.run([*AS_NOBODY, python, "-c", once_more], capture_output=True, check=False, cwd="/")
        if done.returncode == 0:
            return [*AS_NOBODY, python]
        tried.append(f"{python}: {(done.stderr.decode().splitlines() or ['older than 3.11'])[-1]}")
    pytest.skip("an ordinary user cannot execute any Python of this machine: " + "; ".join(tried))


def run(command: list[str], script: str, place: Path, folder: str) -> subprocess.CompletedProcess[bytes]:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(place / "code"),
        "CHAOS_DEBUG": "1",
        "HOME": str(place / "work"),
    }
    argv = [*command, "-B", "-c", script, str(place / "work" / folder)]
    return subprocess.run(argv, cwd="/", env=env, capture_output=True, check=False)


def test_an_ordinary_user_has_labs(ordinary: list[str], place: Path) -> None:
    done = run(ordinary, LIFE, place, "lab")
    if b"does not let this user make namespaces" in done.stderr:
        pytest.skip(f"user namespaces are forbidden here: {done.stderr.decode().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"lived\n"


def test_an_ordinary_user_has_faults_of_the_network_in_them(ordinary: list[str], place: Path) -> None:
    done = run(ordinary, FAULTS, place, "faults")
    if b"does not let this user make namespaces" in done.stderr:
        pytest.skip(f"user namespaces are forbidden here: {done.stderr.decode().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == 2 * ["during True", "after False", "[]"]


@pytest.fixture
def limited() -> Iterator[list[str]]:
    """A command that runs another as an ordinary user of a user namespace in which no further ones can be made: the
    limit is nobody else's."""
    if os.geteuid() != 0:
        pytest.skip("several users in one user namespace need root to map them")
    holder = subprocess.Popen(["unshare", "--user", "sleep", "1000"])
    try:
        ours, theirs = Path("/proc/self/ns/user"), Path(f"/proc/{holder.pid}/ns/user")
        eventually(lambda: theirs.readlink() != ours.readlink(), "the user namespace")
        for kind in ("uid", "gid"):
            Path(f"/proc/{holder.pid}/{kind}_map").write_text("0 0 65535")
        limit = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --reuid=1 --regid=1 --clear-groups "$@"'
        enter = ["nsenter", f"--user=/proc/{holder.pid}/ns/user", "--setuid=0", "--setgid=0"]
        yield [*enter, "sh", "-c", limit, "sh"]
    finally:
        holder.kill()
        holder.wait()


def test_where_namespaces_are_refused_the_error_names_the_remedy(
    ordinary: list[str], limited: list[str], place: Path
) -> None:
    (place / "work").chmod(0o777)
    done = run([*limited, ordinary[-1]], REFUSED, place, "refused")
    message = done.stdout.decode()
    assert "the kernel does not let this user make namespaces (unshare: No space left on device): " in message, (
        done.stderr.decode()
    )
    assert "run as root, or allow user namespaces (sysctl user.max_user_namespaces" in message
    assert len(message.splitlines()) == 1

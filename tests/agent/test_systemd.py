"""The guardian beside a real systemd: what ends a session, or a service with all its processes, passes it by.

systemd runs as PID 1 of namespaces of its own, over this machine's files and with a unit tree that holds nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import AgentProcess
from lab_help import eventually

BOOT = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /etc/systemd/system
printf '[Unit]\\nDescription=nothing\\n' > /etc/systemd/system/nothing.target
export container=test
exec /lib/systemd/systemd --system --unit=nothing.target --show-status=no --log-target=console
"""


NAMESPACES = ("unshare", "--pid", "--fork", "--mount", "--uts", "--ipc", "--cgroup", "--kill-child=KILL")


class Systemd:
    """A running systemd.

    Args:
        pid: of its PID 1, as seen from here.
    """

    def __init__(self, pid: int) -> None:
        self.inside = ["nsenter", f"--target={pid}", "--mount", "--pid", "--uts", "--ipc", "--cgroup"]

    def run(self, *words: str) -> str:
        """A command beside it."""
        return subprocess.run([*self.inside, *words], stdout=subprocess.PIPE, text=True, check=False).stdout

    def guardians(self) -> list[str]:
        """The scopes that guardians are in."""
        listed = self.run("systemctl", "list-units", "--no-legend", "--plain", "chaos-guardian-*")
        return [line.split()[0] for line in listed.splitlines()]


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    if os.geteuid() != 0 or not Path("/lib/systemd/systemd").exists() or shutil.which("systemd-run") is None:
        pytest.skip("NOT RUN: a systemd in namespaces of its own needs root and the package systemd (make system)")
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    trees = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    if not trees:
        pytest.skip("NOT RUN: no cgroup2 is mounted here, and systemd needs a tree of control groups")
    group = trees[0] / f"chaos-test-{os.getpid()}"  # the root of all that it sees
    group.mkdir()
    log = tmp_path_factory.mktemp("systemd") / "log"
    with log.open("wb") as errors:
        outer = subprocess.Popen(
            ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(group), *NAMESPACES, "sh", "-c", BOOT],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    try:
        eventually(lambda: outer.poll() is not None or (children.exists() and children.read_text()), "its PID 1")
        if outer.poll() is not None:
            pytest.skip(f"NOT RUN: no systemd runs in namespaces here: {log.read_text()[-500:]}")
        it = Systemd(int(children.read_text().split()[0]))
        up = ("running", "degraded")
        eventually(lambda: it.run("systemctl", "is-system-running").strip() in up, "a systemd that is up")
        yield it
    finally:
        outer.kill()
        outer.wait()
        for each in sorted(group.rglob("*/"), reverse=True):
            eventually(lambda each=each: removed(each), f"the end of {each}")
        eventually(lambda: removed(group), f"the end of {group}")


def removed(group: Path) -> bool:
    """Remove a control group, if its last process has gone."""
    try:
        group.rmdir()
    except OSError:
        return not group.exists()
    return True


class InSession(AgentProcess):
    """An agent in a session's scope; process ids that it tells are those of its namespace."""

    def __init__(self, folder: Path, systemd: Systemd, name: str) -> None:
        session = ["systemd-run", "--scope", "--quiet", "--collect", f"--unit={name}"]
        super().__init__(folder, before=[*systemd.inside, *session])

    def __exit__(self, *error: object) -> None:
        self.guardians.clear()
        super().__exit__(*error)


def test_what_ends_a_session_with_all_its_processes_leaves_the_guardian_to_undo(
    tmp_path: Path, systemd: Systemd
) -> None:
    with InSession(tmp_path, systemd, "session-1.scope") as agent:
        guardian = agent.arm()["guardian"]
        agent.fire()
        assert agent.effect()
        [scope] = systemd.guardians()
        assert scope in systemd.run("cat", f"/proc/{guardian}/cgroup")
        assert "session-1.scope" in systemd.run("cat", f"/proc/{agent.hello['pid']}/cgroup")
        systemd.run("systemctl", "kill", "--kill-whom=all", "--signal=KILL", "session-1.scope")
        agent.gone()
        eventually(lambda: not systemd.guardians(), "the end of the guardian's scope")


def test_a_shutdown_tells_the_guardian_and_it_undoes_first(tmp_path: Path, systemd: Systemd) -> None:
    with InSession(tmp_path, systemd, "session-2.scope") as agent:
        agent.arm()
        agent.fire()
        [scope] = systemd.guardians()
        systemd.run("systemctl", "stop", "--no-block", scope)  # SIGTERM, as at a shutdown
        agent.gone()
        assert "t" in agent.ask("ping")

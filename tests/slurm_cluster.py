"""A Slurm of the tests' own: munge, a controller and four nodes on this machine, all children of the test."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab_help import eventually

_PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "scontrol", "sinfo", "srun", "scancel")
NODES = 4

_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthInfo=socket={folder}/munge.sock,cred_expire=5
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=1
KillWait=2
SchedulerParameters=sched_interval=2,batch_sched_delay=0
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def why_not() -> str | None:
    """Why no Slurm can be started here; ``None`` where one can."""
    if os.geteuid() != 0:
        return "NOT RUN: a Slurm of its own needs root"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    return f"NOT RUN: a Slurm needs {', '.join(missing)} (make system)" if missing else None


class Slurm:
    """A running cluster: nodes n1 to n4.

    Attributes:
        config: what ``SLURM_CONF`` names.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        self.nodes = [f"n{number}" for number in range(1, NODES + 1)]

    def start(self, stack: ExitStack) -> None:
        """Start everything; ``stack`` ends it."""
        host = socket.gethostname().partition(".")[0]
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        ports = _free_ports(NODES + 1)
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000 State=UNKNOWN"
            for name, port in zip(self.nodes, ports[1:], strict=True)
        ]
        self.config.write_text(_CONFIG.format(folder=self.folder, host=host, ports=ports, nodes="\n".join(lines)))
        files = [f"--{name}={self.folder}/munge.{name}" for name in ("pid-file", "log-file", "seed-file")]
        files.append(f"--socket={self.folder}/munge.sock")
        self._daemon(stack, "munged", "--foreground", "--force", f"--key-file={key}", *files)
        eventually(self._munge_answers, "munge")
        self._daemon(stack, "slurmctld", "-D", "-c", "-f", str(self.config))
        for name in self.nodes:
            (self.folder / f"spool.{name}").mkdir()
            self._daemon(stack, "slurmd", "-D", "-f", str(self.config), "-N", name)
        eventually(lambda: set(self.states().values()) == {"idle"}, "four nodes that are idle")

    def _munge_answers(self) -> bool:
        asked = ["munge", "-n", "-S", str(self.folder / "munge.sock")]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def _daemon(self, stack: ExitStack, *command: str) -> None:
        log = stack.enter_context((self.folder / f"{command[0]}-{command[-1].rpartition('/')[2]}.log").open("wb"))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stack.callback(_end, process)

    def run(self, *command: str) -> str:
        """What one of Slurm's programs says."""
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"SLURM_CONF": str(self.config)}, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """The state of each node, as sinfo shows it: ``idle*`` is one that does not answer."""
        env = os.environ | {"SLURM_CONF": str(self.config)}
        told = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%N %T"], capture_output=True, text=True, env=env, check=False
        ).stdout
        return dict(line.split() for line in told.splitlines())


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """A cluster in a folder, which is a new one."""
    with ExitStack() as stack:
        it = Slurm(folder)
        it.start(stack)
        yield it


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]

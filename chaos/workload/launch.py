"""Starts the reference trainer in a lab and ends it: as a job of its own on the head, or by torchrun on every node."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.lab.client import LabClient, LabProcess
from chaos.lab.errors import LabError
from chaos.lab.topology import LabSpec, management_address

JOB = "chaos.workload.reference.job"
ELASTIC = "chaos.workload.reference.elastic"
RENDEZVOUS_PORT = 29400
GRACE = 3.0  # seconds from asking a job to end to killing it
RESTARTS = 100


class Job:
    """A running job; ``stop`` ends it.

    Args:
        processes: what was started, by name.
        lifelines: descriptors whose closing ends the job, should its controller die.
    """

    def __init__(self, processes: Mapping[str, LabProcess], lifelines: Sequence[int]) -> None:
        self._processes = processes
        self._lifelines = list(lifelines)

    def ended(self) -> dict[str, int]:
        """The processes that have ended by themselves, with their exit codes."""
        return {name: code for name, each in self._processes.items() if (code := each.poll()) is not None}

    def stop(self) -> None:
        """Ask everything to end, and kill what does not within ``GRACE`` seconds. Idempotent."""
        for fd in self._lifelines:
            os.close(fd)
        self._lifelines.clear()
        for process in self._processes.values():
            try:
                process.signal(15)
            except LabError:  # its node is off
                continue
        for process in self._processes.values():
            if process.wait(GRACE) is None:
                process.terminate(GRACE)


def start(lab: LabClient, spec: LabSpec, *, recovery: str, settings: Mapping[str, Any], work: Path, logs: Path) -> Job:
    """Start the reference trainer, one rank on each GPU of the lab's nodes.

    Args:
        recovery: ``none``, ``peer``, ``checkpoint`` or ``restart``.
        settings: ``seed``, ``step_s``, ``checkpoint_every``, ``hash_every``.
        work: folder for events and checkpoints, which all nodes share.
        logs: folder for the processes' output.

    Raises:
        LabError: the lab has gone, or cannot start it.
    """
    config = {
        "events_dir": str(work / "events"),
        "logs_dir": str(logs),
        "checkpoint_dir": str(work / "checkpoints"),
        "recovery": recovery,
        "world": [{"node": n, "gpu": g} for n in range(spec.nodes) for g in range(spec.gpus)],
        "spares": [{"node": n, "gpu": g} for n in spec.all_nodes if spec.is_spare(n) for g in range(spec.gpus)],
        "lab_socket": str(lab.directory),
        **settings,
    }
    (work / "events").mkdir(exist_ok=True)
    file = work / "job.json"
    file.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    if recovery == "restart":
        return _by_torchrun(lab, spec, file, logs)
    reader, writer = os.pipe()
    try:
        process = _spawn(lab, None, [sys.executable, "-m", JOB, str(file)], logs / "job.log", stdin=reader)
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    return Job({"job": process}, [writer])


def _by_torchrun(lab: LabClient, spec: LabSpec, config: Path, logs: Path) -> Job:
    processes = {}
    for node in range(spec.nodes):
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            f"--nnodes={spec.nodes}",
            f"--nproc-per-node={spec.gpus}",
            f"--max-restarts={RESTARTS}",
            "--monitor-interval=0.1",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={management_address(0)}:{RENDEZVOUS_PORT}",
            f"--rdzv-conf=is_host={'true' if node == 0 else 'false'}",
            "--rdzv-id=chaos",
            f"--local-addr={management_address(node)}",
            *("-m", ELASTIC, str(config)),
        ]
        # A restarted gloo rank would dial the dead one through the shared store (pytorch#135712).
        extra = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        processes[f"torchrun on node {node}"] = _spawn(
            lab, node, command, logs / f"torchrun-node{node}.log", extra=extra
        )
    return Job(processes, [])


def _spawn(
    lab: LabClient,
    node: int | None,
    command: list[str],
    log: Path,
    *,
    extra: Mapping[str, str] | None = None,
    stdin: int | None = None,
) -> LabProcess:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    # One thread a rank: several ranks share the machine's cores, and more threads only wait for each other.
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **(extra or {})}
    with log.open("ab") as output:
        fd = output.fileno()
        return lab.spawn(command, node=node, env=env, cwd=str(log.parent), stdin=stdin, stdout=fd, stderr=fd)

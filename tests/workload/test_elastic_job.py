"""The reference trainer under a real torchrun on this host."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import pytest
from reference_job import Job

pytestmark = pytest.mark.train


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_killed_rank_makes_torchrun_start_all_anew_from_the_newest_checkpoint(tmp_path: Path) -> None:
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=5"),
        *("--monitor-interval=0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"),
        *("--local-addr=127.0.0.1", "-m", "chaos.workload.reference.elastic"),
    ]
    # Without it, a restarted gloo rank dials the dead one (pytorch#135712).
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with Job(tmp_path, command=torchrun, env=env, recovery="restart", step_s=0.02, max_steps=60) as job:
        job.await_event("mark", what="checkpoint", step=20)
        job.await_step(25, gen=1)
        job.signal(1, signal.SIGKILL)
        assert job.await_event("mark", what="restored", gen=2)["step"] in (20, 40)
        assert job.await_end() == 0
        assert {event["gen"] for event in job.all("step")} == {1, 2}
        assert [bye["reason"] for bye in job.all("bye")][-2:] == ["done", "done"]
        hashes = job.hashes()
        assert sorted(hashes) == list(range(1, 61))
        assert all(len(digests) == 1 for digests in hashes.values())

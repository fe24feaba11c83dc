"""The reference trainer under torchrun, once a rank: ``torchrun ... -m chaos.workload.reference.elastic CONFIG.json``.

An ordinary data-parallel job: the default process group from the environment, NCCL where each local rank has a GPU and
gloo elsewhere, and a non-zero exit when a collective fails, so that torchrun starts all ranks anew. They go on from the
newest valid checkpoint. In a lab, rank 0 serves the group's store on its node's management network, where torchrun said
it would be, and all connect to it there; then each rank moves into the network of its GPU, and data flows over that.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.lab import namespace
from chaos.workload.events import StepWriter
from chaos.workload.reference.config import ConfigError, JobConfig
from chaos.workload.reference.job import SINGLE_THREADED

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LAB_NETWORKS = "CHAOS_LAB_NETNS"
RENDEZVOUS_S = 30.0  # ranks start one after the other, and each imports torch
_NVLINK_DEVICE = "nvl0"


def enter_gpu_network(environment: MutableMapping[str, str]) -> bool:
    """Move into the network namespace of this local rank's GPU, if a lab's node tells where it is.

    ``CHAOS_LAB_NETNS`` is a JSON object from ``gpu<k>`` to a path, ``LOCAL_RANK`` is k. gloo is told to use the GPU's
    NVLink device. Returns whether there was a lab.

    Raises:
        ConfigError: the lab has no such GPU.
        OSError: its namespace cannot be entered.
    """
    networks = environment.get(LAB_NETWORKS)
    if networks is None:
        return False
    gpu = f"gpu{environment['LOCAL_RANK']}"
    path = json.loads(networks).get(gpu)
    if path is None:
        raise ConfigError(f"{LAB_NETWORKS} has no {gpu} for this local rank: start fewer processes on a node")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespace.setns(fd, namespace.NEWNET)
    finally:
        os.close(fd)
    environment.setdefault("GLOO_SOCKET_IFNAME", _NVLINK_DEVICE)
    return True


def place(environment: Mapping[str, str]) -> tuple[int, int]:
    """Node and GPU of this rank: torchrun's numbers, unless a lab's node says its own."""
    return int(environment.get("CHAOS_NODE", environment["GROUP_RANK"])), int(environment["LOCAL_RANK"])


def count_up(file: Path) -> int:
    """One more than the number in a file, which then holds it; 1 if there is no file yet."""
    file.parent.mkdir(parents=True, exist_ok=True)
    number = int(file.read_text(encoding="ascii")) + 1 if file.exists() else 1
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(f"{number}\n", encoding="ascii")
    fresh.replace(file)
    return number


class DefaultGroup:
    """The default process group; ``generation`` counts the groups of this job, from 1.

    Not by TORCHELASTIC_RESTART_COUNT: a node that is restarted because another one lost a rank does not count that. So
    rank 0 counts, in the folder that survives restarts, and tells the others.
    """

    def __init__(self, counter: Path, device: torch.device) -> None:
        import torch  # noqa: PLC0415 - after OMP_NUM_THREADS is set
        import torch.distributed as dist  # noqa: PLC0415

        self._dist = dist
        self.slot, self.world = dist.get_rank(), dist.get_world_size()
        number = torch.tensor([count_up(counter) if self.slot == 0 else 0], device=device)
        dist.broadcast(number, src=0)
        self.generation = int(number)

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum over all ranks, in place."""
        self._dist.all_reduce(tensor)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Copy the root's tensor to all ranks, in place."""
        self._dist.broadcast(tensor, src=root)


def train(config: JobConfig, environment: MutableMapping[str, str]) -> None:
    """Join the group, restore, and train until the job is done. A failure is an exception, and torchrun's business."""
    import torch  # noqa: PLC0415 - after OMP_NUM_THREADS is set
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed import rendezvous  # type: ignore[attr-defined]  # noqa: PLC0415

    from chaos.workload.reference.recovery import Restart  # noqa: PLC0415
    from chaos.workload.reference.training import loop  # noqa: PLC0415
    from chaos.workload.reference.training.checkpoint import CheckpointFolder  # noqa: PLC0415
    from chaos.workload.reference.training.pace import compute_in_batches  # noqa: PLC0415
    from chaos.workload.reference.training.replica import Replica  # noqa: PLC0415

    torch.set_num_threads(1)
    compute_in_batches()
    node, gpu = place(environment)
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= int(environment["LOCAL_WORLD_SIZE"])
    if on_gpu:
        torch.cuda.set_device(gpu)
        torch.use_deterministic_algorithms(mode=True)
    device = torch.device(f"cuda:{gpu}" if on_gpu else "cpu")
    replica = Replica(config.model, config.seed, device)
    replica.warm_up()

    events = StepWriter(config.events_dir)
    events.hello(node, gpu, replica.hash_algorithm)
    group: DefaultGroup | None = None
    folder = CheckpointFolder(config.checkpoint_dir, replica.identity, config.keep_checkpoints)
    checkpoints = loop.checkpoint_writer(folder, events, lambda: group.generation if group else 0)
    timeout = timedelta(seconds=config.collective_timeout_s)
    try:
        store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=RENDEZVOUS_S)))
        enter_gpu_network(environment)
        dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=world, timeout=timeout)
        group = DefaultGroup(config.checkpoint_dir / "generation", device)
        events.mark("group", group.generation)
        events.member(group.slot, group.generation, group.world)
        Restart().restore(replica, group, folder, events)
        schedule = loop.Schedule.of(config, checkpoints=True)
        loop.train(
            replica,
            group,
            schedule,
            events,
            checkpoints=checkpoints,
            vote=lambda: False,
            on_step=lambda _: True,
        )
        dist.barrier()  # nobody closes connections that another still reads from
    except Exception as error:
        events.bye(f"{type(error).__name__}: {error}")
        raise
    checkpoints.drain(timeout=5.0)
    events.bye("done")


def main(arguments: list[str] | None = None) -> int:
    """Read the configuration and train; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1:
        print("usage: torchrun ... -m chaos.workload.reference.elastic CONFIG.json", file=sys.stderr)
        return 2
    try:
        config = JobConfig.load(Path(arguments[0]))
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    os.environ.update(SINGLE_THREADED)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products, where there is a GPU
    train(config, os.environ)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # gloo's threads may not survive the interpreter's own end ("terminate called")

"""Recovery in place from the newest valid checkpoint: survivors keep their processes and lose some steps."""

from __future__ import annotations

import torch

from chaos.workload.events import StepWriter
from chaos.workload.reference.rank.group import Group
from chaos.workload.reference.recovery.base import Recovery, RestoreFailed
from chaos.workload.reference.training.checkpoint import Checkpoint, CheckpointError, CheckpointFolder
from chaos.workload.reference.training.replica import Replica

_FROM_THE_SEED = -1


class FromCheckpoint(Recovery):
    """The lowest slot finds the newest valid checkpoint and says which; all load exactly that one."""

    in_place = True
    writes_checkpoints = True
    from_peers = False

    def restore(self, replica: Replica, group: Group, checkpoints: CheckpointFolder, events: StepWriter) -> None:
        """Load the agreed checkpoint, or start from the seed where there is none."""
        found = self._newest(checkpoints, group, events) if group.slot == 0 else None
        step, digest = self._agree(group, found)
        events.mark("agreed", group.generation, step=max(step, 0))
        if step == _FROM_THE_SEED:
            replica.reset()
        else:
            checkpoint = found or self._load(checkpoints, step, digest)
            replica.load(checkpoint.state, checkpoint.step)
        events.mark("restored", group.generation, step=replica.completed)

    @staticmethod
    def _newest(checkpoints: CheckpointFolder, group: Group, events: StepWriter) -> Checkpoint | None:
        return checkpoints.newest(lambda error: events.mark("checkpoint_refused", group.generation, why=str(error)))

    @staticmethod
    def _agree(group: Group, found: Checkpoint | None) -> tuple[int, int]:
        """Step and first half of the digest that slot 0 decided on."""
        choice = (_FROM_THE_SEED, 0) if found is None else (found.step, _half(found.digest))
        message = torch.tensor(choice, dtype=torch.int64)
        group.broadcast(message, root=0)
        step, digest = message.tolist()
        return step, digest

    @staticmethod
    def _load(checkpoints: CheckpointFolder, step: int, digest: int) -> Checkpoint:
        try:
            checkpoint = checkpoints.load(step)
        except CheckpointError as error:
            raise RestoreFailed(f"the checkpoint that rank 0 chose cannot be read here: {error}") from error
        if _half(checkpoint.digest) != digest:
            raise RestoreFailed(f"{checkpoint.path} is not the file that rank 0 chose: their SHA-256 differ")
        return checkpoint


def _half(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)

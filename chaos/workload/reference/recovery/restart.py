"""Restart by torchrun: a broken group ends every process, and the new ones go on from the newest valid checkpoint."""

from __future__ import annotations

from chaos.workload.reference.recovery.checkpoint import FromCheckpoint


class Restart(FromCheckpoint):
    """State as in recovery in place; the processes are torchrun's business."""

    in_place = False

"""No recovery: a broken group ends the job."""

from __future__ import annotations

from chaos.workload.events import StepWriter
from chaos.workload.reference.rank.group import Group
from chaos.workload.reference.recovery.base import Recovery
from chaos.workload.reference.training.checkpoint import CheckpointFolder
from chaos.workload.reference.training.replica import Replica


class NoRecovery(Recovery):
    """Every rank starts from the seed, once."""

    in_place = False
    writes_checkpoints = False
    from_peers = False

    def restore(self, replica: Replica, group: Group, checkpoints: CheckpointFolder, events: StepWriter) -> None:  # noqa: ARG002
        """Nothing to agree on: the initial state is a function of the seed."""
        replica.reset()

"""The contract of a recovery strategy."""

from __future__ import annotations

from typing import Protocol

from chaos.workload.events import StepWriter
from chaos.workload.reference.rank.group import Group
from chaos.workload.reference.training.checkpoint import CheckpointFolder
from chaos.workload.reference.training.replica import Replica


class RestoreFailed(RuntimeError):
    """This rank cannot take over the state that the group goes on from; the message says why."""


class Recovery(Protocol):
    """A strategy.

    Attributes:
        in_place: whether survivors form a new group in the same process; if not, a broken group ends them.
        writes_checkpoints: whether it needs checkpoints.
        from_peers: whether the state comes from a replica that lives. Then the job goes on with fewer ranks where too
            few can be replaced, leaves sick paths, and is over when no replica is left.
    """

    in_place: bool
    writes_checkpoints: bool
    from_peers: bool

    def restore(self, replica: Replica, group: Group, checkpoints: CheckpointFolder, events: StepWriter) -> None:
        """Bring ``replica`` to the state that all members of a new ``group`` go on from; called by all of them.

        Raises:
            GroupBroken: the group broke meanwhile.
            RestoreFailed: this rank has no access to that state.
        """

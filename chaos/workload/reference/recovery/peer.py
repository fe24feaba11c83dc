"""Recovery in place from a living replica: nobody loses more than the step in progress, and no file is read.

A step counts only when its whole sum has arrived, so survivors are one step apart at most, and every replica that has
completed as many steps holds the same bits. In the new group all tell how many they have completed; the lowest slot
with the most sends its parameters and moments to all. A replica without a state of its own is as the seed made it: it
has completed none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chaos.workload.events import StepWriter
from chaos.workload.reference.rank.group import Group
from chaos.workload.reference.recovery.base import Recovery
from chaos.workload.reference.training.checkpoint import CheckpointFolder
from chaos.workload.reference.training.replica import Replica


def furthest(completed: Sequence[int]) -> int:
    """The lowest slot among those with the most completed steps."""
    return completed.index(max(completed))


class FromPeer(Recovery):
    """The lowest slot among those that are furthest sends its state to whoever is behind."""

    in_place = True
    writes_checkpoints = False
    from_peers = True

    def restore(self, replica: Replica, group: Group, checkpoints: CheckpointFolder, events: StepWriter) -> None:  # noqa: ARG002
        """Agree on the furthest state, and take it over; one collective where nobody is behind."""
        completed = self._gather(group, replica.completed)
        source = furthest(completed)
        step = completed[source]
        behind = sum(each < step for each in completed)
        events.mark("agreed", group.generation, step=step, source=source, behind=behind)
        if behind:
            self._send(replica, group, source, step)
        events.mark("restored", group.generation, step=replica.completed)

    @staticmethod
    def _gather(group: Group, completed: int) -> list[int]:
        """The completed steps of every slot."""
        told = torch.zeros(group.world, dtype=torch.int64)
        told[group.slot] = completed
        group.all_reduce(told)
        return told.tolist()

    @staticmethod
    def _send(replica: Replica, group: Group, source: int, step: int) -> None:
        if group.slot == source:
            group.broadcast(replica.arena.state, root=source)
            return
        # Never into the state itself: a broadcast that breaks leaves half of another's behind, and one that was given
        # up may still write.
        received = torch.empty_like(replica.arena.state)
        group.broadcast(received, root=source)
        if replica.completed < step:
            replica.load(received, step)

"""What is done about a lost rank: one small strategy a module.

``none``        the job ends, as an ordinary data-parallel job does.
``peer``        survivors form a new group in place; whoever is behind gets the state of one that is not.
``checkpoint``  survivors form a new group in place; all go back to the newest valid checkpoint.
``restart``     torchrun starts all ranks anew; they go on from the newest valid checkpoint.
"""

from chaos.workload.reference.config import RecoveryName
from chaos.workload.reference.recovery.base import Recovery, RestoreFailed
from chaos.workload.reference.recovery.checkpoint import FromCheckpoint
from chaos.workload.reference.recovery.none import NoRecovery
from chaos.workload.reference.recovery.peer import FromPeer
from chaos.workload.reference.recovery.restart import Restart

__all__ = ["FromCheckpoint", "FromPeer", "NoRecovery", "Recovery", "Restart", "RestoreFailed", "recovery_for"]


def recovery_for(name: RecoveryName) -> Recovery:
    """The strategy of that name."""
    strategies: dict[str, type[Recovery]] = {
        "none": NoRecovery,
        "peer": FromPeer,
        "checkpoint": FromCheckpoint,
        "restart": Restart,
    }
    return strategies[name]()

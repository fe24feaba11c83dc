"""The launcher: the process that decides who is a member of the job, and the first thing of the job to be replaceable.

It holds the ranks' control connections and the store over which a generation's ranks find each other. Nothing of it is
needed for a step: ranks that lose it train on, and connect to the next one, which learns from them how things stand.
"""

from __future__ import annotations

from chaos.workload.events import StepWriter
from chaos.workload.reference.config import JobConfig
from chaos.workload.reference.launcher.supervisor import Supervisor
from chaos.workload.reference.placement import placement_for
from chaos.workload.reference.poller import Poller
from chaos.workload.reference.store import RendezvousStore
from chaos.workload.reference.zygote import ZygoteClient


def run_launcher(config: JobConfig, zygote: ZygoteClient) -> int:
    """Supervise a job to its end, whoever began it; returns its exit code."""
    StepWriter(config.events_dir).launcher()
    return Supervisor(config, zygote, placement_for(config), Poller(), RendezvousStore()).run()

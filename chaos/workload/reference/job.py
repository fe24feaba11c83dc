"""One job in the launcher's process: the zygote first, then the store, then supervision until it is told to end."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.workload.reference import store
from chaos.workload.reference.config import JobConfig
from chaos.workload.reference.placement import placement_for
from chaos.workload.reference.poller import Poller
from chaos.workload.reference.rank import RankSetup
from chaos.workload.reference.supervisor import Supervisor
from chaos.workload.reference.zygote import Zygote

_STDIN = 0


def run_job(config: JobConfig) -> int:
    """Run a job to its end; returns the exit code.

    Raises:
        OSError: its folders cannot be made.
    """
    for folder in (config.events_dir, config.logs_dir, config.checkpoint_dir):
        folder.mkdir(parents=True, exist_ok=True)
    placement = placement_for(config)
    listener = store.listen()
    zygote = Zygote.fork(RankSetup(config, listener))
    served = store.serve(listener)  # only now: a process that holds a store must not be forked
    poller = Poller()
    supervisor = Supervisor(config, zygote, placement, poller)
    with _told_to_end(poller, supervisor):
        code = supervisor.run()
    del served
    return code


@contextmanager
def _told_to_end(poller: Poller, supervisor: Supervisor) -> Iterator[None]:
    """End the job at SIGTERM and SIGINT, and at the end of standard input where that is somebody's lifeline."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    former = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}

    def hear_signal() -> None:
        os.read(reader, 4096)
        supervisor.end(0, "stopped by a signal")

    def hear_stdin() -> None:
        if not os.read(_STDIN, 4096):
            poller.ignore(_STDIN)
            supervisor.end(0, "stopped: standard input has ended")

    poller.listen(reader, hear_signal)
    mode = os.fstat(_STDIN).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):  # /dev/null is nobody's
        poller.listen(_STDIN, hear_stdin)
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in former.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)

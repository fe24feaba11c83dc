"""A rank, from its fork to its end: enter the place, join generations, train, and start over when a group breaks."""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Callable
from contextlib import nullcontext

import torch

from chaos.lab import namespace
from chaos.workload.events import Incarnation, StepWriter
from chaos.workload.reference import store
from chaos.workload.reference.abort import shut_connections
from chaos.workload.reference.checkpoint import CheckpointFolder
from chaos.workload.reference.config import JobConfig
from chaos.workload.reference.control import Control
from chaos.workload.reference.group import BUILD_TIMEOUT_S, GlooGroup, GroupBroken, GroupBuilder
from chaos.workload.reference.loop import Schedule, checkpoint_writer, train
from chaos.workload.reference.messages import Generation
from chaos.workload.reference.pace import compute_in_batches
from chaos.workload.reference.placement import enter, name_process
from chaos.workload.reference.recovery import RestoreFailed, recovery_for
from chaos.workload.reference.replica import Replica
from chaos.workload.reference.zygote import CONTROL, Order

EXIT_GROUP_BROKEN = 1
EXIT_ORPHANED = 3
EXIT_RESTORE_FAILED = 4

_log = logging.getLogger("rank")


class RankSetup:
    """Made in the launcher before the zygote is forked: what all ranks inherit, imported and warm.

    Args:
        config: the job.
        listener: of the launcher's store, which is not served yet.
    """

    def __init__(self, config: JobConfig, listener: socket.socket) -> None:
        torch.set_num_threads(1)
        self._config = config
        self._store_port = listener.getsockname()[1]
        self._listener = listener.fileno()
        self._replica = Replica(config.model, config.seed)
        self._replica.warm_up()
        gc.collect()
        gc.freeze()  # no rank looks through torch's objects again, nor copies their pages by doing so

    def __call__(self, order: Order) -> int:
        """Be that rank; returns the exit code."""
        os.close(self._listener)  # its port is free again when the launcher dies
        self._open_log()
        name_process(f"rank n{order.place.node}g{order.place.gpu}")
        head = namespace.open_namespace("net") if "net" in order.fds else None
        # Still single-threaded: a mount namespace cannot be entered otherwise, and threads inherit the network.
        enter(order.fds)
        for kind, fd in order.fds.items():
            if kind != CONTROL:
                os.close(fd)
        connect = self._connector(head)
        events = StepWriter(self._config.events_dir)
        events.hello(order.place.node, order.place.gpu, self._replica.hash_algorithm)
        self._replica.warm_up()  # again: the pages that a step writes to become this process's own
        control_socket = socket.socket(fileno=order.fds[CONTROL])
        return Rank(
            order.process, self._config, self._replica, events, control_socket=control_socket, connect=connect
        ).run()

    def _open_log(self) -> None:
        path = self._config.logs_dir / f"{Incarnation.current().name}.log"
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(null)
        os.close(log)

    def _connector(self, head: int | None) -> Callable[[], store.Store]:
        """Opens a store connection on the management network, where faults on the data path do not reach it."""

        def connect() -> store.Store:
            # For the calling thread alone; the socket stays in the network in which it was made.
            with nullcontext() if head is None else namespace.inside_network(head):
                return store.connect(self._store_port, BUILD_TIMEOUT_S)

        return connect


class Rank:
    """The life of a warm process in a job.

    Args:
        process: its number, by which the launcher knows it.
        control_socket: the way to the launcher.
        connect: opens a store connection.
    """

    def __init__(
        self,
        process: int,
        config: JobConfig,
        replica: Replica,
        events: StepWriter,
        *,
        control_socket: socket.socket,
        connect: Callable[[], store.Store],
    ) -> None:
        self._process = process
        self._replica = replica
        self._events = events
        self._recovery = recovery_for(config.recovery)
        self._schedule = Schedule.of(config, checkpoints=self._recovery.writes_checkpoints)
        self._control = Control(control_socket, shut_connections, self._aborted, self._orphaned)
        self._groups = GroupBuilder(self._control, connect, config.collective_timeout_s)
        self._folder = CheckpointFolder(config.checkpoint_dir, replica.identity, config.keep_checkpoints)
        self._checkpoints = checkpoint_writer(self._folder, events, lambda: self._generation)
        self._generation = 0
        self._member = False

    def run(self) -> int:
        """Serve until the job is over; returns the exit code."""
        self._control.start()
        compute_in_batches()
        self._control.ready()
        reason, code = "stopped", 0
        while (group := self._join()) is not None:
            try:
                self._recovery.restore(self._replica, group, self._folder, self._events)
                train(
                    self._replica,
                    group,
                    self._schedule,
                    self._events,
                    checkpoints=self._checkpoints,
                    on_step=self._goes_on,
                )
            except GroupBroken as broken:
                if not self._recovery.in_place and not self._control.stopping:
                    reason, code = str(broken), EXIT_GROUP_BROKEN
                    break
                self._leave(group, broken)
            except RestoreFailed as failed:
                reason, code = str(failed), EXIT_RESTORE_FAILED
                break
            else:
                reason = "stopped" if self._control.stopping else "done"
                self._control.done(group.generation)
        self._checkpoints.drain(timeout=2.0)
        self._events.bye(reason)
        return code

    def _join(self) -> GlooGroup | None:
        """The group of the next generation that has a seat for us; ``None`` when the job is to stop."""
        while (generation := self._control.next_generation()) is not None:
            self._generation = generation.number
            slot = generation.slot_of(self._process)
            if slot is None:
                self._stand_by(generation)
                continue
            try:
                group = self._groups.build(generation, slot)
            except GroupBroken as broken:
                self._tell_broken(generation.number, broken)
                continue
            self._member = True
            self._events.mark("group", generation.number)
            self._events.member(slot, generation.number, group.world)
            return group
        return None

    def _stand_by(self, generation: Generation) -> None:
        if self._member:  # replaced while we were away: what we hold is void
            self._member = False
            self._events.fenced(generation.number)
            self._replica.reset()
        self._control.ready()

    def _goes_on(self) -> bool:
        self._control.step_completed()
        return not self._control.stopping

    def _leave(self, group: GlooGroup, broken: GroupBroken) -> None:
        if not self._control.stopping:
            self._tell_broken(group.generation, broken)
        self._replica.arena.renew_gradient()
        self._groups.discard(group)

    def _tell_broken(self, generation: int, broken: GroupBroken) -> None:
        _log.info("generation %d is broken: %s", generation, broken)
        self._control.broken(generation, str(broken))

    def _aborted(self, generation: Generation, connections: int) -> None:
        if self._member:
            self._events.mark("detected", generation.number, t=generation.detected_ns, why=generation.why)
            self._events.mark("aborted", generation.number, connections=connections)

    def _orphaned(self) -> None:
        self._events.bye("the launcher has gone")
        os._exit(EXIT_ORPHANED)

"""A rank, from its fork to its end: enter the place, join generations, train, and start over when a group breaks."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from contextlib import nullcontext

import torch

from chaos.lab import namespace
from chaos.workload.events import Incarnation, StepWriter
from chaos.workload.reference import store
from chaos.workload.reference.beacons import Beacons, Partner, Report, partners
from chaos.workload.reference.config import JobConfig, Place
from chaos.workload.reference.messages import Generation
from chaos.workload.reference.placement import ends, enter, name_process
from chaos.workload.reference.rank.abort import shut_connections
from chaos.workload.reference.rank.control import Control
from chaos.workload.reference.rank.group import BUILD_TIMEOUT_S, GlooGroup, GroupBroken, GroupBuilder, Successor
from chaos.workload.reference.recovery import RestoreFailed, recovery_for
from chaos.workload.reference.rendezvous import Meeting
from chaos.workload.reference.training.checkpoint import CheckpointFolder
from chaos.workload.reference.training.loop import Schedule, checkpoint_writer, train
from chaos.workload.reference.training.pace import compute_in_batches
from chaos.workload.reference.training.replica import Replica, StepFigures
from chaos.workload.reference.zygote import Order

EXIT_GROUP_BROKEN = 1
EXIT_ORPHANED = 3
EXIT_RESTORE_FAILED = 4

_log = logging.getLogger("rank")


class RankSetup:
    """Made in the zygote before it forks: what all ranks inherit, imported and warm.

    Args:
        config: the job.
    """

    def __init__(self, config: JobConfig) -> None:
        torch.set_num_threads(1)
        self._config = config
        self._replica = Replica(config.model, config.seed)
        self._replica.warm_up()
        gc.collect()
        gc.freeze()  # no rank looks through torch's objects again, nor copies their pages by doing so

    def __call__(self, order: Order) -> int:
        """Be that rank; returns the exit code."""
        self._open_log()
        name_process(f"rank n{order.place.node}g{order.place.gpu}")
        meeting = Meeting(self._config.control_socket)
        head = namespace.open_namespace("net") if "net" in order.fds else None
        # Still single-threaded: a mount namespace cannot be entered otherwise, and threads inherit the network.
        enter(order.fds)
        for fd in order.fds.values():
            os.close(fd)
        events = StepWriter(self._config.events_dir)
        events.hello(order.place.node, order.place.gpu, self._replica.hash_algorithm)
        self._replica.warm_up()  # again: the pages that a step writes to become this process's own
        beacons = self._beacons(order)
        connect = self._connector(head)
        return Rank(order, self._config, self._replica, events, meeting=meeting, beacons=beacons, connect=connect).run()

    def _open_log(self) -> None:
        path = self._config.logs_dir / f"{Incarnation.current().name}.log"
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(null)
        os.close(log)

    def _beacons(self, order: Order) -> Beacons | None:
        """Where there is a second path to go to, and a recovery that goes there."""
        own = ends(self._config, order.place)
        return Beacons(order.process, own) if len(own) > 1 and recovery_for(self._config.recovery).from_peers else None

    @staticmethod
    def _connector(head: int | None) -> Callable[[Generation], store.Store]:
        """Opens a store connection on the management network, where faults on the data path do not reach it."""

        def connect(generation: Generation) -> store.Store:
            # For the calling thread alone; the socket stays in the network in which it was made.
            with nullcontext() if head is None else namespace.inside_network(head):
                return store.connect(generation.store_port, generation.number, BUILD_TIMEOUT_S)

        return connect


class Rank:
    """The life of a warm process in a job.

    Args:
        order: its number, by which the launcher knows it, and its place.
        meeting: where launchers are met.
        beacons: on its paths to others; ``None`` where it has only one.
        connect: opens a connection to a generation's store.
    """

    def __init__(
        self,
        order: Order,
        config: JobConfig,
        replica: Replica,
        events: StepWriter,
        *,
        meeting: Meeting,
        beacons: Beacons | None,
        connect: Callable[[Generation], store.Store],
    ) -> None:
        self._process = order.process
        self._config = config
        self._replica = replica
        self._events = events
        self._beacons = beacons
        self._recovery = recovery_for(config.recovery)
        self._schedule = Schedule.of(config, checkpoints=self._recovery.writes_checkpoints)
        self._control = Control(order.process, meeting.connect, self)
        self._groups = GroupBuilder(self._control, connect, config.collective_timeout_s)
        self._successor = Successor(self._groups, self._tell_no_successor)
        self._folder = CheckpointFolder(config.checkpoint_dir, replica.identity, config.keep_checkpoints)
        self._checkpoints = checkpoint_writer(self._folder, events, lambda: self._generation)
        self._generation = 0
        self._member = False

    # -- the main thread -----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until the job is over; returns the exit code."""
        self._control.start()
        compute_in_batches()
        self._control.tell(standing_by=True)
        reason, code = "stopped", 0
        group = self._join()
        while group is not None:
            try:
                self._recovery.restore(self._replica, group, self._folder, self._events)
                self._control.tell(completed=self._replica.completed)
                moved = self._train(group)
            except GroupBroken as broken:
                if not self._recovery.in_place and not self._control.stopping:
                    reason, code = str(broken), EXIT_GROUP_BROKEN
                    break
                self._leave(group, broken)
                group = self._join()
            except RestoreFailed as failed:
                reason, code = str(failed), EXIT_RESTORE_FAILED
                break
            else:
                if moved is None:
                    reason = "stopped" if self._control.stopping else "done"
                    self._control.tell(done=True)
                    group = self._join()
                else:
                    self._groups.discard(group)
                    group = moved
        self._checkpoints.drain(timeout=2.0)
        self._events.bye(reason)
        return code

    def _train(self, group: GlooGroup) -> GlooGroup | None:
        """Train until the job is done or to stop, or all move over to a successor, which is returned."""
        moved: list[GlooGroup] = []

        def goes_on(figures: StepFigures) -> bool:
            self._control.step_completed(self._replica.completed)
            if figures.votes == group.world and (taken := self._successor.take()) is not None:
                moved.append(self._move_over(*taken))
            return not moved and not self._control.stopping

        train(
            self._replica,
            group,
            self._schedule,
            self._events,
            checkpoints=self._checkpoints,
            sleep=self._control.sleep,
            vote=self._successor.stands,
            on_step=goes_on,
        )
        return moved[0] if moved else None

    def _move_over(self, generation: Generation, group: GlooGroup) -> GlooGroup:
        self._control.move_over(generation)
        return self._joined(generation, group)

    def _join(self) -> GlooGroup | None:
        """The group of the next generation that has a seat for us; ``None`` when the job is to stop."""
        while (generation := self._control.next_generation()) is not None:
            slot = generation.slot_of(self._process)
            if slot is None:
                self._stand_by(generation)
                continue
            try:
                return self._joined(generation, self._groups.build(generation, slot))
            except GroupBroken as broken:
                self._tell_broken(generation.number, broken)
        return None

    def _joined(self, generation: Generation, group: GlooGroup) -> GlooGroup:
        self._generation = generation.number
        self._member = True
        self._events.mark("group", generation.number)
        self._events.member(group.slot, generation.number, group.world)
        return group

    def _stand_by(self, generation: Generation) -> None:
        self._generation = generation.number
        if self._member:  # replaced while we were away: what we hold is void
            self._member = False
            self._events.fenced(generation.number)
            self._replica.reset()
        self._control.tell(standing_by=True, completed=0)

    def _leave(self, group: GlooGroup, broken: GroupBroken) -> None:
        if not self._control.stopping:
            self._tell_broken(group.generation, broken)
        self._replica.arena.renew_gradient()
        self._groups.discard(group)

    def _tell_broken(self, generation: int, broken: GroupBroken) -> None:
        _log.info("generation %d is broken: %s", generation, broken)
        self._control.tell(broken=str(broken)[:400])

    # -- the watcher's thread ------------------------------------------------------------------------------------------

    def abort(self) -> int:
        """Break every connection of the process group."""
        return shut_connections()

    def aborted(self, generation: Generation, connections: int) -> None:
        """A new generation."""
        if self._member:
            number, why = generation.number, generation.why
            self._events.mark("symptom", number, t=generation.symptom_ns)
            self._events.mark("detected", number, t=generation.detected_ns, why=why)
            self._events.mark("aborted", number, connections=connections)

    def offered(self, generation: Generation) -> None:
        """Form a group beside the present one."""
        slot = generation.slot_of(self._process)
        if slot is not None:
            self._events.mark("successor", generation.number, why=generation.why)
            self._successor.offer(generation, slot)

    def withdrawn(self) -> None:
        """What was formed beside the present group is obsolete."""
        self._successor.drop()

    def _tell_no_successor(self, generation: int, broken: GroupBroken) -> None:
        _log.info("generation %d is not formed: %s", generation, broken)
        self._control.tell(no_successor=generation)

    def peers(self, places: dict[int, Place]) -> None:
        """Expect the beacons of those that this process shares a path with."""
        if self._beacons is not None:
            shared = partners(places).get(self._process, {})
            addresses = {process: ends(self._config, places[process]) for process in shared}
            self._beacons.watch(
                [
                    Partner(process, {path: addresses[process][path].address for path in paths})
                    for process, paths in shared.items()
                ]
            )

    def silences(self) -> list[Report]:
        """Exchange beacons; returns whom this process does not hear, and on which path."""
        if self._beacons is None:
            return []
        self._beacons.beat()
        return self._beacons.silent()

    def orphaned(self) -> None:
        """Nobody will ever say what to do next."""
        self._events.bye("there is no launcher any more")
        os._exit(EXIT_ORPHANED)

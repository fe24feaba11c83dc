"""The launcher's judgement: who is lost, when a new generation is due, and when the job is over.

A death is seen by pidfd, a hang by missing heartbeats, a main thread that is stuck behind a living watcher by the
collective that it does not enter, a sick path by missing beacons, and anything else by a collective that failed or
timed out. What is found is gathered for a moment, then a new generation is formed: at once, by breaking the old group,
or, where nothing is broken (a path is healthy again, a lost rank can be replaced), beside it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from chaos.workload.reference import messages
from chaos.workload.reference.beacons import BEAT_S
from chaos.workload.reference.config import JobConfig
from chaos.workload.reference.launcher.adoption import Adoption
from chaos.workload.reference.launcher.heartbeat import Heartbeats
from chaos.workload.reference.launcher.membership import Membership, State
from chaos.workload.reference.launcher.progress import Progress
from chaos.workload.reference.launcher.routes import Routes
from chaos.workload.reference.launcher.workers import Worker, Workers
from chaos.workload.reference.messages import Generation, Message, Status
from chaos.workload.reference.placement import Placement
from chaos.workload.reference.poller import Poller
from chaos.workload.reference.recovery import recovery_for
from chaos.workload.reference.rendezvous import Meeting
from chaos.workload.reference.store import RendezvousStore
from chaos.workload.reference.zygote import ZygoteClient

_log = logging.getLogger("launcher")

GATHER_S = 0.002  # a node's loss is several deaths a few milliseconds apart
RETRY_S = 0.03  # after a failed collective the cause (a death, a hang) is usually about to show itself
FOLLOW_S = 1.0  # within this, beyond what a step takes, a main thread follows a new generation, or it is stuck
RESTORE_S = 1.0  # within this, beyond what a step takes, a peer's state is there and the first step done
START_S = 20.0  # within this a process is warm
RESPAWN_S = 0.5  # a new spare is started when the job runs again: it needs cores, and the lab may be busy
REPLACE_S = 1.0  # a job without spares waits so long for a process that is being started, then it goes on with fewer
SUCCESSOR_S = 3.0  # within this all have moved over to a group that is formed beside the present one
IMPROVE_S = (2.0, 60.0)  # after one that failed, pause before the next: the first one, doubled up to the last
STOP_S = 3.0  # for ranks to end by themselves
FRUITLESS = 20  # so many generations in a row without one completed step: the job fails
HOPELESS = 5  # so many processes in a row that a place loses before the job has begun: it never will
_TICK_S = 0.02


@dataclass
class _Cause:
    """Why a new generation is needed. Instants in seconds of CLOCK_MONOTONIC.

    Attributes:
        due: when it is acted upon, whatever else has come up until then.
        symptom: when the first sign was there to be seen.
        detected: when it was noticed.
    """

    due: float
    symptom: float
    detected: float
    what: list[str] = field(default_factory=list)

    def add(self, what: str, symptom: float) -> None:
        """Something more of the same."""
        self.what.append(what)
        self.symptom = min(self.symptom, symptom)

    def __str__(self) -> str:
        return "; ".join(self.what)


class Supervisor:
    """One job from its first process, or from where a former launcher has left it, to its last.

    Args:
        config: the job.
        zygote: starts processes.
        placement: where.
        poller: of the launcher's one thread.
        store: over which a generation's members find each other.
        clock: seconds of CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        config: JobConfig,
        zygote: ZygoteClient,
        placement: Placement,
        poller: Poller,
        store: RendezvousStore,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._zygote = zygote
        self._poller = poller
        self._store = store
        self._clock = clock
        self._recovery = recovery_for(config.recovery)
        self._membership = Membership(config.world, config.spares)
        self._heartbeats = Heartbeats(config.hang_timeout_s)
        self._progress = Progress()
        self._routes = Routes(config, watched=self._recovery.from_peers)
        self._workers = Workers(
            zygote,
            placement,
            poller,
            Meeting(config.control_socket).listen(),
            on_message=self._hear,
            on_death=self._mourn,
            on_end=self.end,
            clock=clock,
        )
        self._current: Generation | None = None
        self._successor: Generation | None = None  # is being formed beside the current one
        self._going: set[int] = set()  # generations that must not break: the current one, and the one it grew beside
        self._number = zygote.generation  # of the newest one
        self._published = 0.0  # when that was announced
        self._improve_after = 0.0
        self._improve_pause = IMPROVE_S[0]
        self._loss: _Cause | None = None  # seats are empty
        self._trouble: _Cause | None = None  # the group cannot go on as it is, with all its members alive
        self._helpless = False  # something is cut off, and there is no way round
        self._furthest = int(zygote.begun)  # steps that the job has completed, as far as anybody has said
        self._fruitless = 0
        self._outcome: int | None = None
        self._adoption: Adoption | None = None
        if self._workers.alive:
            self._adoption = Adoption(self._workers.alive, clock(), begun=zygote.begun)
        for worker in self._workers.alive.values():
            self._membership.started(worker.number, worker.place)

    def run(self) -> int:
        """Run the job until ``end``; returns the exit code."""
        while self._outcome is None:
            self._poller.wait(self._until_due())
            if self._adoption is not None:
                self._adopt(self._adoption)
                continue
            self._look_for_hangs()
            self._look_for_stuck()
            self._look_at_paths()
            if self._outcome is None:
                self._decide()
                self._start_processes()
        self._stop()
        return self._outcome

    def end(self, outcome: int, why: str) -> None:
        """End the job with an exit code; the first call counts."""
        if self._outcome is None:
            self._outcome = outcome
            _log.info("job ends: %s", why)
            self._zygote.outcome(outcome)  # now: nobody must start a job again that is over

    def _stop(self) -> None:
        for worker in list(self._workers.alive.values()):
            if worker.control is None:
                self._workers.kill(worker, "it has not met this launcher, and cannot be told to stop")
            self._workers.send(worker, {"op": "stop"})
        for number in self._heartbeats.silent(self._clock(), list(self._workers.alive)):
            self._workers.kill(self._workers.alive[number], "it hangs, and cannot end by itself")
        end = self._clock() + STOP_S
        while self._workers.alive and self._clock() < end:
            self._poller.wait(_TICK_S)
        for worker in self._workers.alive.values():
            _log.warning("%s did not end by itself and is killed", worker)

    # -- what is heard ---------------------------------------------------------------------------------------------

    def _hear(self, worker: Worker, message: Message) -> None:
        match message["op"]:
            case "hello":
                self._greet(worker, message)
            case "beat":
                self._heartbeats.beat(worker.number, self._clock())
                silences = messages.silences_from(message)
                self._routes.hear(worker.number, silences, sent=message["t"], now=self._clock())
                former, worker.status = worker.status, Status(**message["status"])
                if self._adoption is None:
                    self._hear_status(worker, former)
                else:
                    self._adoption.told(worker.number, worker.status)

    def _greet(self, worker: Worker, hello: Message) -> None:
        """It has found us: it may have missed something, or know more than we do."""
        if self._routes.peers:
            self._workers.send(worker, messages.peers_message(self._routes.peers.items()))
        heard = Generation.from_message(hello["generation"]) if hello["generation"] else None
        successor = Generation.from_message(hello["successor"]) if hello["successor"] else None
        if self._adoption is not None:
            self._adoption.met(worker.number, heard, successor)
        elif self._current is not None:
            known = 0 if heard is None else heard.number
            if known < self._current.number:
                self._workers.send(worker, self._current.as_message())
            elif known > self._current.number:  # from a former launcher, in its last moment
                self._number = max(self._number, known)
                self._note_trouble(f"{worker} has heard of a generation that was not formed", self._clock())

    def _hear_status(self, worker: Worker, former: Status) -> None:
        status, number = worker.status, worker.number
        if status.standing_by:
            self._hear_ready(worker)
        if self._successor is not None and number in self._successor.members:
            if status.followed == self._successor.number and number in self._members:
                self._succeed(self._successor)
            elif status.no_successor == self._successor.number:
                self._give_up_successor("could not be formed")
            elif status.broken and status.followed == self._successor.number:
                self._give_up_successor(f"failed: {status.broken}")
        if self._current is None or number not in self._members:
            return
        if status.followed <= self._current.number:
            position = status.followed, status.entered
            self._progress.hear(number, position, self._clock(), inside=status.inside)
        if status.completed:
            self._furthest = max(self._furthest, status.completed)
            self._zygote.has_begun()
        news = (status.followed, status.broken) != (former.followed, former.broken)
        if status.broken and news and status.followed in self._going:
            _log.info("%s: generation %d is broken: %s", worker, status.followed, status.broken)
            self._note_trouble(status.broken, self._clock(), wait=RETRY_S)

    def _hear_ready(self, worker: Worker) -> None:
        state = self._membership.state(worker.number)
        newest = self._current.number if self._current is not None else 0
        if state is State.STARTING or (state is State.STALE and worker.status.followed >= newest):
            self._workers.settled(worker.place)
            self._membership.ready(worker.number)

    def _mourn(self, worker: Worker) -> None:
        self._heartbeats.forget(worker.number)
        self._progress.forget(worker.number)
        self._routes.forget(worker.number)
        if self._adoption is not None:
            self._adoption.died(worker.number)
        elif self._membership.state(worker.number) is State.STARTING:
            self._workers.put_off(worker.place, f"{worker} died before it was ready; its log says why")
            if self._current is None and self._workers.attempts[worker.place] >= HOPELESS:
                self.end(1, f"{HOPELESS} processes in a row died on {worker.place} before they were ready")
        if self._membership.lost(worker.number):
            self._lose(worker, "died", self._clock())

    def _lose(self, worker: Worker, what: str, symptom: float) -> None:
        """A process that held a seat does no longer."""
        if self._successor is not None and worker.number not in self._members:
            self._give_up_successor(f"is without {worker}, which {what}")
        else:
            self._note_loss(f"{worker} {what}", symptom)

    def _note_loss(self, what: str, symptom: float) -> None:
        if self._outcome is not None:
            return
        _log.warning("%s", what)
        now = self._clock()
        if self._loss is None:
            self._loss = _Cause(now + GATHER_S, symptom, now)
        self._loss.add(what, symptom)

    def _note_trouble(self, what: str, symptom: float, wait: float = 0.0) -> None:
        now = self._clock()
        if self._trouble is None:
            self._trouble = _Cause(now + wait, symptom, now)
        self._trouble.due = min(self._trouble.due, now + wait)
        self._trouble.add(what, symptom)

    # -- what is seen ----------------------------------------------------------------------------------------------

    @property
    def _members(self) -> list[int]:
        """Of the current generation; some may be dead."""
        return [] if self._current is None else self._current.members

    def _look_for_hangs(self) -> None:
        silent = self._heartbeats.silent(self._clock(), list(self._workers.alive))
        if not self._replica_left(without=self._quiet):
            # All may be stopped: to replace them would be to begin anew. They may wake, if not all in one instant.
            self._heartbeats.excuse(self._clock())
            return
        for number in silent:
            last = self._heartbeats.last(number) or 0.0
            warm = self._membership.state(number) in (State.MEMBER, State.SPARE)
            if self._recovery.in_place and warm and self._membership.expel(number):
                self._lose(self._workers.alive[number], "hangs", last + BEAT_S)
        for number in set(self._membership.blocked_by()) & set(silent):
            self._workers.kill(self._workers.alive[number], "it hangs, and its place is needed")

    def _look_for_stuck(self) -> None:
        now = self._clock()
        for worker in list(self._workers.alive.values()):
            if self._membership.state(worker.number) is State.STARTING and now - worker.asked > START_S:
                self._workers.kill(worker, f"it was not ready within {START_S:g} s")
        if self._current is None or not self._recovery.in_place or self._loss is not None:
            return
        quiet = set(self._quiet)
        seated = [n for n in self._members if self._membership.state(n) is State.MEMBER and n not in quiet]
        follow = FOLLOW_S if self._recovery.from_peers else START_S
        for number in self._progress.stuck(seated, now, patience=self._patience(), follow=follow):
            if self._replica_left(without={number, *quiet}) and self._membership.expel(number):
                since = self._progress.waiting_since
                self._note_loss(f"the main thread of {self._workers.alive[number]} is stuck", since)
                self._workers.kill(self._workers.alive[number], "its main thread is stuck")

    @property
    def _quiet(self) -> list[int]:
        """Members whose watchers may not live."""
        return self._heartbeats.quiet(self._clock(), self._membership.members)

    def _patience(self) -> float:
        """Seconds for which a member may keep the others waiting, beyond what a step takes."""
        if self._fruitful:
            return self._config.hang_timeout_s
        return RESTORE_S if self._recovery.from_peers else START_S  # a checkpoint may lie on slow storage

    @property
    def _fruitful(self) -> bool:
        """Whether the current generation has completed a step."""
        alive = self._workers.alive
        statuses = [alive[number].status for number in self._members if number in alive]
        assert self._current is not None
        return any(status.steps for status in statuses if status.followed == self._current.number)

    def _look_at_paths(self) -> None:
        """Let nodes leave sick media, and spares replace whom the others cannot reach."""
        if self._current is None:
            return
        now = self._clock()
        warm = [number for number in self._workers.alive if self._membership.state(number) is not State.STARTING]
        if self._routes.watch({number: self._membership.place(number) for number in warm}, now):
            for number in warm:
                peers = messages.peers_message(self._routes.peers.items())
                self._workers.send(self._workers.alive[number], peers)
        seated = {number: self._membership.place(number) for number in self._members if number in self._workers.alive}
        for detour in self._routes.detours(seated, now):
            self._note_trouble(detour.why, detour.since)
        if self._successor is not None and self._routes.relapsed(seated):
            self._give_up_successor("would use a path that is sick again")
        self._replace_cut_off()
        helpless = self._loss is None and self._routes.stuck(seated)
        if self._helpless and not helpless and self._loss is None and self._trouble is None:
            # TCP would wait for its next retransmission, which is the later the longer the silence was.
            self._note_trouble("all can hear each other again", now)
        self._helpless = helpless

    def _replace_cut_off(self) -> None:
        """Let spares take the seats of members that the others cannot reach, if there are enough.

        Without them the others wait: they would go on with fewer ranks, for what may be a moment. Not for one that has
        never done a step with them.
        """
        cut_off = self._routes.cut_off(self._members)
        members = [number for number in self._membership.members if number in cut_off]
        spares = [number for number in self._membership.spares if number not in cut_off]
        if len(spares) < len(members):
            members = [number for number in members if not self._workers.alive[number].status.completed]
        for number in members if self._furthest else ():
            self._membership.expel(number)
            self._lose(self._workers.alive[number], "cannot be reached by the others", cut_off[number])

    # -- what is done about it -------------------------------------------------------------------------------------

    def _until_due(self) -> float:
        """Seconds until something is to be decided, one tick at most."""
        now = self._clock()
        dues = [cause.due - now for cause in (self._loss, self._trouble) if cause is not None and cause.due > now]
        return min([_TICK_S, *dues])

    def _start_processes(self) -> None:
        if self._current is not None and not self._recovery.in_place:
            return
        now = self._clock()
        gathering = self._loss is not None and now < self._loss.due
        if not gathering and not (self._membership.complete and now - self._published < RESPAWN_S):
            self._fill_places()

    def _fill_places(self) -> None:
        for place in self._membership.vacant_places():
            if (worker := self._workers.start(place)) is not None:
                self._membership.started(worker.number, place)

    def _decide(self) -> None:
        now = self._clock()
        if self._current is None:
            if not self._membership.starting and self._membership.fill():
                self._publish(_Cause(now, now, now, ["start"]))
        elif self._loss is not None:
            if now >= self._loss.due:
                self._recover(self._loss)
        elif self._done():
            self.end(0, "done")
        elif self._trouble is not None:
            if now >= self._trouble.due:
                self._recover(self._trouble)
        elif self._successor is None:
            self._improve(now)
        elif now - self._published > SUCCESSOR_S:
            self._give_up_successor(f"was not moved over to within {SUCCESSOR_S:g} s")

    def _done(self) -> bool:
        assert self._current is not None
        statuses = [self._workers.alive[number].status for number in self._members if number in self._workers.alive]
        return len(statuses) == len(self._members) and all(
            status.done and status.followed == self._current.number for status in statuses
        )

    def _recover(self, cause: _Cause) -> None:
        if not self._recovery.in_place:
            self._end_with_survivors(str(cause))
            return
        unusable = self._unusable(cause)
        if self._membership.fill(unusable):
            self._publish(cause)
        elif self._recovery.from_peers:
            self._fill_places()
            awaited = cause is self._loss and self._membership.starting and self._clock() < cause.due + REPLACE_S
            if not self._replica_left():
                self.end(1, f"no replica of the state is left: {cause}")
            elif not awaited and self._membership.fill(unusable, partly=True):
                self._publish(cause)

    def _unusable(self, cause: _Cause) -> set[int]:
        """Spares that cannot be reached, and, unless a loss makes it urgent, those of which that is not known yet."""
        unusable = set(self._routes.cut_off(self._members))
        if cause is not self._loss:
            unusable |= self._routes.unproven(self._members, self._membership.spares, self._clock())
        return unusable

    def _replica_left(self, without: Collection[int] = ()) -> bool:
        """Whether a member holds the state that the job has come to, or the job does not need one that does."""
        alive = self._workers.alive
        held = [alive[number].status.completed for number in self._membership.members if number not in without]
        return self._recovery.writes_checkpoints or not self._furthest or any(held)

    def _end_with_survivors(self, why: str) -> None:
        """Without recovery the job ends as it would by itself: survivors fail at once, or by their time-out."""
        end = self._clock() + self._config.collective_timeout_s + 1
        while self._workers.alive and self._clock() < end and self._outcome is None:
            self._poller.wait(_TICK_S)
        self.end(1, f"no recovery: {why}")

    def _improve(self, now: float) -> None:
        """Return to healthy paths and take lost seats again, without breaking the group that trains."""
        if not self._recovery.from_peers or not self._fruitful or now < self._improve_after:
            return
        seated = {number: self._membership.place(number) for number in self._members}
        why = [each.why for each in self._routes.returns(seated, now)]
        if not self._membership.complete:
            unproven = self._routes.unproven(self._members, self._membership.spares, now)
            self._membership.fill(unproven, partly=True)
            why += [f"{self._workers.alive[n]} joins" for n in self._membership.members if n not in seated]
        if why:
            self._offer(_Cause(now, now, now, why))

    # -- generations -----------------------------------------------------------------------------------------------

    def _form(self, cause: _Cause) -> Generation:
        self._number += 1
        self._zygote.announce(self._number)
        generation = Generation(
            self._number,
            self._membership.seats(self._routes.bind),
            str(cause),
            int(cause.symptom * 1e9),
            int(cause.detected * 1e9),
            self._store.port,
        )
        self._published = self._clock()
        _log.info("generation %d (%s): %s", generation.number, cause, self._described(generation))
        return generation

    def _described(self, generation: Generation) -> str:
        seats = ", ".join(f"{slot}: {seat.place} at {seat.bind}" for slot, seat in enumerate(generation.seats))
        fewer = len(generation.seats) < self._membership.size
        return seats + (f"; {len(generation.seats)} of {self._membership.size} ranks" if fewer else "")

    def _publish(self, cause: _Cause) -> None:
        """Break the group that there is, and form another."""
        if not self._replica_left():
            self.end(1, f"no replica of the state is left: {cause}")
            return
        if self._current is not None:
            # While nobody could get through, no generation could bear fruit.
            self._fruitless = 0 if self._fruitful or self._helpless else self._fruitless + 1
            if self._fruitless > FRUITLESS:
                self.end(1, f"{FRUITLESS} generations in a row completed no step; the last one: {cause}")
                return
        obsolete = (self._current, self._successor)
        self._current, self._successor = self._form(cause), None
        if not self._recovery.in_place:
            self._zygote.has_begun()  # it ends with its first ranks
        self._routes.take(self._current.seats, self._published)
        self._going = {self._current.number}
        for worker in list(self._workers.alive.values()):
            self._workers.send(worker, self._current.as_message())
        self._loss = self._trouble = None
        self._progress.announced(self._current.number, self._current.members, self._published)
        self._forget_keys(*obsolete)

    def _offer(self, cause: _Cause) -> None:
        """Form another group beside the one that there is."""
        self._successor = self._form(cause)
        for worker in list(self._workers.alive.values()):
            self._workers.send(worker, self._successor.as_message("successor"))

    def _succeed(self, successor: Generation) -> None:
        """The first rank has moved over, and so will all."""
        _log.info("generation %d goes on without a gap", successor.number)
        former, self._current, self._successor = self._current, successor, None
        self._going.add(successor.number)  # a rank whose last collective in the former one broke has not moved over
        self._improve_pause = IMPROVE_S[0]
        self._routes.take(successor.seats, self._clock())
        self._progress.announced(successor.number, successor.members, self._clock())
        self._forget_keys(former)

    def _give_up_successor(self, why: str) -> None:
        """Go on without it: those that were to join are none of us, and all others form the present group anew."""
        assert self._successor is not None
        now = self._clock()
        for number in set(self._successor.members) - set(self._members):
            if number in self._workers.alive:
                self._membership.expel(number)
        self._routes.stay()
        self._improve_after = now + self._improve_pause
        self._improve_pause = min(2 * self._improve_pause, IMPROVE_S[1])
        self._note_trouble(f"generation {self._successor.number} {why}", now)
        self._forget_keys(self._successor)
        self._successor = None

    def _forget_keys(self, *obsolete: Generation | None) -> None:
        for generation in obsolete:
            if generation is not None and generation.store_port == self._store.port:
                self._store.forget(generation.number)

    # -- after a former launcher -----------------------------------------------------------------------------------

    def _adopt(self, adoption: Adoption) -> None:
        """Take over from a former launcher, once its ranks have told how things stand."""
        now = self._clock()
        if not adoption.complete(now):
            return
        self._adoption = None
        self._number = max(self._number, adoption.number)
        self._current, self._successor = adoption.current, adoption.successor
        self._published = now
        if self._current is None:
            return
        self._going = {self._current.number}
        self._take_seats(adoption)
        self._routes.take(self._current.seats, now)
        statuses = {number: worker.status for number, worker in self._workers.alive.items()}
        self._furthest = max(self._furthest, *(status.completed for status in statuses.values()))
        self._progress.announced(self._current.number, self._members, now)
        for number in adoption.behind:
            self._note_trouble(f"{self._workers.alive[number]} has not heard of the generation", now)
        for number in set(self._members) & statuses.keys():
            if statuses[number].broken and statuses[number].followed == self._current.number:
                self._note_trouble(statuses[number].broken, now)
        for number in self._membership.members:
            self._heartbeats.beat(number, now)  # or one that never beats would never be missed
        if self._successor is not None:
            self._give_up_successor("has lost its store with the former launcher")
        _log.info("took over generation %d: %s", self._current.number, self._described(self._current))

    def _take_seats(self, adoption: Adoption) -> None:
        assert self._current is not None
        statuses = {number: worker.status for number, worker in self._workers.alive.items()}
        seated = self._members if self._successor is None else self._successor.members
        spares = {number for number, status in statuses.items() if status.standing_by}
        stale = set(statuses) - spares - set(seated)  # or starting: they are told the generation, and stand by
        for number in self._membership.adopt(seated, spares, stale):
            self._note_loss(f"process {number} died while there was no launcher", self._clock())
        for number in set(statuses) - set(seated):  # a message of its may have died with the former launcher
            if adoption.heard(number) < self._current.number:
                self._workers.send(self._workers.alive[number], self._current.as_message())

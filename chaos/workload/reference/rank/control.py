"""A rank's side of the control plane: a watcher thread that hears the launcher whatever the main thread waits for.

The watcher beats every 20 ms, exchanges path beacons at that pace, aborts the old generation's connections as soon as a
newer one is announced (and again, while there is a launcher, until the main thread has left it: a connection may open
after the first look), and looks for the next launcher when one has gone. Training needs none; the process ends when
none comes.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from chaos.workload.reference import messages
from chaos.workload.reference.beacons import BEAT_S, Report
from chaos.workload.reference.config import Place
from chaos.workload.reference.messages import Generation, Message, Status

ORPHANED_S = 10.0  # without any launcher for so long a rank ends


class Listener(Protocol):
    """What else a rank does with what it hears; all of it is called in the watcher's thread."""

    def abort(self) -> int:
        """Break every connection of the process group; returns how many there were."""

    def aborted(self, generation: Generation, connections: int) -> None:
        """The old group was broken for a new generation."""

    def offered(self, generation: Generation) -> None:
        """A generation is to be formed beside the present one."""

    def withdrawn(self) -> None:
        """What was formed beside the present generation will not be used."""

    def peers(self, places: dict[int, Place]) -> None:
        """These processes are warm, and where."""

    def silences(self) -> list[Report]:
        """Called at each beat: what is not heard now."""

    def orphaned(self) -> None:
        """There is no launcher any more; the last thing that is heard."""


class Control:
    """What the launcher wants of this rank, and what it knows of it.

    Args:
        process: this process's number.
        connect: opens a connection to the launcher; ``None`` while there is none.
        listener: who acts on it.
    """

    def __init__(self, process: int, connect: Callable[[], socket.socket | None], listener: Listener) -> None:
        self._process = process
        self._connect = connect
        self._listener = listener
        self._changed = threading.Condition()
        self._sock: socket.socket | None = None
        self._latest: Generation | None = None
        self._successor: Generation | None = None
        self._status = Status()
        self._silent: list[Report] = []
        self.stopping = False

    def start(self) -> None:
        """Start the watcher."""
        threading.Thread(target=self._watch, name="watcher", daemon=True).start()

    # -- the main thread's side ----------------------------------------------------------------------------------

    def next_generation(self) -> Generation | None:
        """Wait for a generation newer than the one followed so far, and follow it.

        Returns:
            The newest one, or ``None`` when the job is to stop.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.stopping or self._outdated())
            if self.stopping:
                return None
            assert self._latest is not None
            # From here on connections belong to the new generation: the watcher no longer breaks them.
            self._follow(self._latest)
            return self._latest

    def move_over(self, generation: Generation) -> None:
        """Follow a generation that was formed beside the present one."""
        with self._changed:
            if self._latest is None or self._latest.number < generation.number:
                self._latest = generation
            self._successor = None
            self._follow(generation)

    def _follow(self, generation: Generation) -> None:
        self._status = Status(followed=generation.number, completed=self._status.completed)

    def wait_for(self, done: Callable[[], bool]) -> bool:
        """Wait until ``done``; ``False`` if a newer generation or the end of the job comes first.

        Whoever makes ``done`` true calls ``notify``.
        """
        with self._changed:
            self._changed.wait_for(lambda: done() or self._given_up())
            return not self._given_up() and done()

    def notify(self) -> None:
        """Let ``wait_for`` look again; from any thread."""
        with self._changed:
            self._changed.notify_all()

    @property
    def given_up(self) -> bool:
        """Whether the generation that this rank follows has been replaced, or the job is to stop."""
        with self._changed:
            return self._given_up()

    def enter(self) -> bool:
        """Count a collective that the main thread is about to enter; ``False``: it must not, the group is over."""
        with self._changed:
            if self._given_up():
                return False
            self._status.entered += 1
            self._status.inside = True
            return True

    def left(self) -> None:
        """The main thread has left the collective that it had entered."""
        with self._changed:
            self._status.inside = False

    def sleep(self, seconds: float) -> None:
        """Sleep, unless and until this generation is over."""
        with self._changed:
            self._changed.wait_for(self._given_up, seconds)

    def step_completed(self, completed: int) -> None:
        """Count a step in this generation; ``completed``: steps behind the state, in all."""
        with self._changed:
            self._status.steps += 1
            self._status.completed = completed

    def tell(self, **fields: object) -> None:
        """Change fields of this rank's ``Status``, and let the launcher know at once."""
        with self._changed:
            self._status = replace(self._status, **fields)  # type: ignore[arg-type]
            self._beat()

    def _outdated(self) -> bool:
        return self._latest is not None and self._latest.number > self._status.followed

    def _given_up(self) -> bool:
        return self.stopping or self._outdated()

    # -- the watcher's side --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        due = alone_since = time.monotonic()
        poll = select.poll()
        while True:
            if self._sock is None:
                if self.stopping:
                    return
                self._meet(poll)
            wait = max(0.0, due - time.monotonic())
            if self._sock is None:
                if time.monotonic() - alone_since > ORPHANED_S:
                    self._listener.orphaned()
                    return
                time.sleep(wait)
            else:
                alone_since = time.monotonic()
                self._listen(self._sock, poll, wait)
            if time.monotonic() >= due:
                self._silent = self._listener.silences()
                self._beat()
                due = time.monotonic() + BEAT_S

    def _meet(self, poll: select.poll) -> None:
        sock = self._connect()
        if sock is None:
            return
        poll.register(sock, select.POLLIN)
        hello: Message = {"op": "hello", "process": self._process}
        with self._changed:
            for op, generation in (("generation", self._latest), ("successor", self._successor)):
                hello[op] = None if generation is None else generation.as_message()
            messages.send(sock, hello)
            self._sock = sock
            self._beat()

    def _beat(self) -> None:
        # Under the lock, so that an older status never overtakes a newer one.
        with self._changed:
            if self._sock is not None:  # what is lost with a launcher is told to the next one
                messages.send(self._sock, messages.beat_message(self._status, self._silent, time.monotonic()))

    def _listen(self, sock: socket.socket, poll: select.poll, wait: float) -> None:
        if poll.poll(wait * 1000):
            if not self._hear(sock):
                poll.unregister(sock)
                with self._changed:
                    self._sock = None
                    sock.close()
        elif self._outdated():
            with self._changed:
                if self._outdated():
                    self._listener.abort()

    def _hear(self, sock: socket.socket) -> bool:
        """Take one message; ``False`` when the launcher has gone."""
        message = messages.receive(sock)
        if message is None:
            return False
        match message["op"]:
            case "stop":
                with self._changed:
                    self.stopping = True
                    self._changed.notify_all()
            case "generation":
                self._hear_generation(Generation.from_message(message))
            case "successor":
                self._hear_successor(Generation.from_message(message))
            case "peers":
                self._listener.peers(messages.peers_from(message))
        return True

    def _hear_generation(self, generation: Generation) -> None:
        with self._changed:
            if self._latest is not None and self._latest.number >= generation.number:
                return
            broken = self._listener.abort()
            self._listener.withdrawn()
            self._latest, self._successor = generation, None
            self._changed.notify_all()
        self._listener.aborted(generation, broken)
        self._beat()

    def _hear_successor(self, generation: Generation) -> None:
        with self._changed:
            in_group = not self._status.standing_by
            if in_group:
                self._successor = generation
        if in_group:
            self._listener.offered(generation)
        else:  # there is no group to form it beside
            self._hear_generation(generation)

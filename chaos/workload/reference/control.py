"""A rank's side of the control plane: a watcher thread that hears the launcher whatever the main thread waits for.

The watcher beats every 20 ms, aborts the old generation's connections as soon as a newer one is announced (and again
until the main thread has left it: a connection may open after the first look), and ends the process when the launcher
has gone.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from chaos.workload.reference import messages
from chaos.workload.reference.messages import Generation

BEAT_S = 0.02


class Control:
    """What the launcher wants of this rank.

    Args:
        sock: our end of the control socket.
        abort: breaks every connection of the process group; returns how many there were.
        on_abort: told of each new generation after the abort, with the number of connections, in the watcher's thread.
        on_orphaned: called in the watcher's thread, as its last act, when the launcher has gone.
    """

    def __init__(
        self,
        sock: socket.socket,
        abort: Callable[[], int],
        on_abort: Callable[[Generation, int], None],
        on_orphaned: Callable[[], None],
    ) -> None:
        self._sock = sock
        self._abort = abort
        self._on_abort = on_abort
        self._on_orphaned = on_orphaned
        self._changed = threading.Condition()
        self._latest: Generation | None = None
        self._followed = 0
        self._steps = 0
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
            self._followed, self._steps = self._latest.number, 0
            return self._latest

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

    def step_completed(self) -> None:
        """Count a step in this generation."""
        self._steps += 1

    def ready(self) -> None:
        """Tell that this process is warm and holds no state that anybody needs."""
        messages.send(self._sock, {"op": "ready"})

    def broken(self, generation: int, why: str) -> None:
        """Tell that a generation failed here."""
        messages.send(self._sock, {"op": "broken", "gen": generation, "why": why[:400]})

    def done(self, generation: int) -> None:
        """Tell that the last step is done."""
        messages.send(self._sock, {"op": "done", "gen": generation})

    def _outdated(self) -> bool:
        return self._latest is not None and self._latest.number > self._followed

    def _given_up(self) -> bool:
        return self.stopping or self._outdated()

    # -- the watcher's side --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        due = time.monotonic()
        while True:
            if poll.poll(max(0.0, due - time.monotonic()) * 1000):
                if not self._hear():
                    self._on_orphaned()
                    return
            elif self._outdated():
                with self._changed:
                    if self._outdated():
                        self._abort()
            if time.monotonic() >= due:
                messages.send(self._sock, {"op": "beat", "gen": self._followed, "steps": self._steps})
                due = time.monotonic() + BEAT_S

    def _hear(self) -> bool:
        """Take one message; ``False`` when the launcher has gone."""
        message = messages.receive(self._sock)
        if message is None:
            return False
        if message["op"] == "stop":
            with self._changed:
                self.stopping = True
                self._changed.notify_all()
        elif message["op"] == "generation":
            generation = Generation.from_message(message)
            with self._changed:
                broken = self._abort()
                self._latest = generation
                self._changed.notify_all()
            self._on_abort(generation, broken)
        return True

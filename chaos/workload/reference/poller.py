"""One poll loop's descriptors and what to do when they are readable."""

from __future__ import annotations

import select
from collections.abc import Callable


class Poller:
    """Calls a handler for each readable descriptor."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def listen(self, fd: int, handler: Callable[[], None]) -> None:
        """Call ``handler`` whenever ``fd`` is readable or its other end has gone."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def ignore(self, fd: int) -> None:
        """Stop listening, before the descriptor is closed. Idempotent."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, seconds: float) -> None:
        """Handle what is readable, waiting for it ``seconds`` at most."""
        ready = [(fd, self._handlers[fd]) for fd, _ in self._poll.poll(seconds * 1000)]
        for fd, handler in ready:
            # An earlier handler may have closed this descriptor, and its number may be another's by now.
            if self._handlers.get(fd) is handler:
                handler()

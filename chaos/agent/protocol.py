"""The agent's language: JSON lines over its stdin and stdout.

The agent begins with ``hello``: who it is, what it has undone of former agents (``swept``), and what it could not
(``left``; nothing is armed then). The controller sends requests ``{"id": n, "op": ...}``; the agent answers
``{"re": n, ...}`` (with ``error`` where it could not) and reports ``{"event": ..., "fault": ...}``. All instants are
CLOCK_MONOTONIC of the agent's node, in ns.

ping
    The answer carries ``t``, the agent's clock.
probe
    ``implementation, params, target``; the answer carries ``reality`` and ``missing``.
arm
    ``fault, implementation, params, target, duration, at, owner, on_eof`` (``undo`` or ``hold``); the answer carries
    the ``record``, the ``evidence`` of the witness before and the process id of the ``guardian``. ``at`` is the latest
    instant that ``fire`` may name: the record on the disk has the deadline that follows from it, so that firing itself
    waits for no disk.
fire
    ``fault, at``; answered at once. Then come the events ``fired``, ``witness`` (during), ``ended``, ``undone`` and
    ``witness`` (after).
disarm
    ``fault``; answered at once; the same events follow, early.
status
    ``fault``, and its ``record`` where the controller has a copy; the answer carries ``held`` (by this agent),
    ``record`` (whether it is on the disk) and ``residue``: with neither of the two and no residue it is proven undone.
sweep
    ``implementations`` (of all kinds that may have left something), and ``copies`` of records that may have been lost
    here; the answer carries what ``Sweep`` has found.
examine
    The answer carries ``checks``, what the node allows (see ``chaos.agent.examine``), and its wall clock, ``wall_ns``.
renew
    As ``ping``. Every request renews the lease, this one does nothing else.
bye
    Answered when everything is undone; the agent then ends.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List

VERSION = 2
LEASE = 3.0  # seconds without a word from the controller after which the agent undoes everything
RENEW_EVERY = 1.0  # seconds
SLACK = 5.0  # seconds after a fault's scheduled end at which anybody on its node may undo it
LATEST = SLACK - 1.0  # seconds after its instant at which a fault is no longer made: it has to end before its deadline

Message = Dict[str, Any]


def encode(message: Message) -> bytes:
    """One line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Lines:
    """Collects bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> List[Message]:
        """The messages that are complete now.

        Raises:
            ValueError: a line is no JSON object; what came after it is lost.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                raise ValueError(f"a line of the agent's pipe is no JSON object: {line[:80]!r}")
            messages.append(message)
        return messages

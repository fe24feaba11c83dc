"""Ends a run from outside: asks its controller, waits until its promises are kept, and kills it if it does not react.

A killed controller's agents lose their pipe, which is an order to undo; its lab goes with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass
from typing import Literal

from chaos.engine import processes
from chaos.engine.errors import InputError
from chaos.engine.ledger import Ledger
from chaos.store import PromiseRow, RunRow

REACT = 5.0  # seconds for a controller to begin to undo; a stopped or hung one never does
UNDO = 60.0  # seconds for it to come to its end
AFTERMATH = 10.0  # seconds after its death in which agents undo by themselves, and its lab goes
LOOK = 0.02  # seconds between two looks


@dataclass(frozen=True)
class Halted:
    """How one run was ended.

    Attributes:
        how: it ``"ended"`` as asked, was ``"killed"`` as it did not react, or ``"lasts"``: it undoes, for very long.
        still: the promises that are not proven kept.
    """

    run: str
    how: Literal["ended", "killed", "lasts"]
    still: list[PromiseRow]


def find(ledger: Ledger, name: str) -> RunRow:
    """A running run by its id, or by the beginning of it.

    Raises:
        InputError: none of that name is running, or several are.
        StoreError: the store cannot be read.
    """
    running = ledger.running()
    matching = [row for row in running if row.run == name] or [row for row in running if row.run.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    known = ", ".join(row.run for row in running) or "none"
    if matching:
        raise InputError(f"{name!r} may be {' or '.join(row.run for row in matching)}")
    raise InputError(f"no run {name!r} is under way (running: {known})")


def halt(ledger: Ledger, row: RunRow, asked: str) -> Halted:
    """End a run.

    Args:
        asked: who asks, for the run's scorecard.

    Raises:
        InputError: its controller is another machine's, or another user's.
        StoreError: the store cannot be read or written.
    """
    controller = _open(row)
    if controller is None:
        return Halted(row.run, "ended", _wait_kept(ledger, row))
    try:
        ledger.request_halt(row.run, asked)
        _signal(controller, row, signal.SIGTERM)
        if not _reacts(ledger, row, controller):
            _signal(controller, row, signal.SIGKILL)
            _ended(controller, AFTERMATH)
            return Halted(row.run, "killed", _wait_kept(ledger, row))
        if not _ended(controller, UNDO):
            return Halted(row.run, "lasts", ledger.open_promises(row.run))
    finally:
        os.close(controller)
    return Halted(row.run, "ended", _wait_kept(ledger, row))


def _open(row: RunRow) -> int | None:
    """A descriptor of the run's controller; None if it has ended."""
    if row.host != processes.host() or processes.alive(row.controller) is None:
        raise InputError(f"run {row.run} is controlled from elsewhere (host {row.host}): halt it there")
    try:
        controller = os.pidfd_open(row.controller["pid"])
    except ProcessLookupError:
        return None
    if processes.alive(row.controller):  # asked again: its number may have been given to another just before
        return controller
    os.close(controller)
    return None


def _signal(controller: int, row: RunRow, number: signal.Signals) -> None:
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(controller, number)
    except PermissionError as error:
        raise InputError(f"run {row.run} belongs to another user: run chaos halt as that user, or as root") from error


def _reacts(ledger: Ledger, row: RunRow, controller: int) -> bool:
    """Whether the controller begins to undo, or ends, in time."""
    end = time.monotonic() + REACT
    while time.monotonic() < end:
        if _ended(controller, LOOK):
            return True
        found = ledger.run(row.run)
        if found is not None and found.stopping is not None:
            return True
    return False


def _ended(controller: int, patience: float) -> bool:
    waiter = select.poll()
    waiter.register(controller, select.POLLIN)
    return bool(waiter.poll(patience * 1000))


def _wait_kept(ledger: Ledger, row: RunRow) -> list[PromiseRow]:
    """Wait until the promises of a run without a controller are kept; those that are not in time."""
    end = time.monotonic() + AFTERMATH
    while True:
        _, still = ledger.reconcile(row.run)
        if not still or time.monotonic() > end:
            return still
        time.sleep(LOOK)

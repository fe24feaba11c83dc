"""The ledger: every fault is promised to be undone before its node hears of it, until its node has proven it.

A promise is written before ``arm`` is sent, gets the copy of the node's undo record before ``fire``, and is closed by
a proof alone: the node's word that nothing is left, or the end of the whole lab in which the fault was, which takes
every process and namespace of it along. What is open after the controller has died is told by the next command.

A promise's ``place`` is how its node's agent is reached again: ``{"transport": "lab", "lab": folder, "keeper":
process, "node": number or "head"}``; ``{"transport": "ssh", "inventory": path, "node": name}``; or ``{"transport":
"local", "state": folder of its undo records}``, with ``lab`` and ``keeper`` as well where the fault is made on a lab
from outside.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from chaos.engine import processes
from chaos.engine.errors import InputError
from chaos.store import PromiseRow, RunRow, Store, StoreError


class Ledger:
    """The promises in the store.

    Args:
        store: open; closed with the ledger.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(cls, path: Path | None = None) -> Self:
        """Open the store in its usual place, or in another.

        Raises:
            InputError: it cannot be used; says why, and the remedy.
        """
        try:
            return cls(Store(path))
        except StoreError as error:
            raise InputError(str(error)) from error

    def close(self) -> None:
        """Give the store back."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- promises ----------------------------------------------------------------------------------------------------

    def promise(
        self,
        fault: str,
        *,
        run: str,
        place: Mapping[str, Any],
        kind: str,
        params: Mapping[str, Any],
        deadline_ns: int,
    ) -> None:
        """Promise that a fault will be undone.

        Args:
            place: how its node's agent is reached again.
            deadline_ns: CLOCK_MONOTONIC of this machine at which it has ended at the latest.

        Raises:
            StoreError: the promise is not on stable storage; the fault may not be armed.
        """
        left = timedelta(microseconds=(deadline_ns - time.monotonic_ns()) // 1000)
        self._store.promise(
            fault,
            run=run,
            place=place,
            kind=kind,
            params=params,
            deadline=datetime.now(UTC) + left,
            deadline_ns=deadline_ns,
            boot=processes.boot_id(),
        )

    def record(self, fault: str, record: Mapping[str, Any]) -> None:
        """Keep the copy of the node's undo record.

        Raises:
            StoreError: it is not on stable storage; the fault may not be fired.
        """
        self._store.record(fault, record)

    def close_promise(self, fault: str, proof: str) -> None:
        """A promise is kept.

        Args:
            proof: who says so, and what was seen.

        Raises:
            StoreError: it could not be written; the promise stays open.
        """
        self._store.close_promise(fault, proof)

    def open_promises(self, run: str | None = None) -> list[PromiseRow]:
        """The promises, of one run or of all, that are not proven kept."""
        return self._store.open_promises(run)

    def reconcile(self, run: str | None = None) -> tuple[dict[str, str], list[PromiseRow]]:
        """Close the open promises, of one run or of all, whose whole lab has gone; start nothing.

        Returns:
            The proofs of those that are closed now, by fault, and those that are still open.

        Raises:
            StoreError: the store cannot be read or written.
        """
        proofs, still = {}, []
        for promise in self._store.open_promises(run):
            proof = gone_with_lab(promise.place)
            if proof is None:
                still.append(promise)
            else:
                self._store.close_promise(promise.fault, proof)
                proofs[promise.fault] = proof
        return proofs, still

    def orphaned(self) -> list[PromiseRow]:
        """The open promises whose controller has died, or has ended without having kept them.

        Raises:
            StoreError: the store cannot be read.
        """
        _, still = self.reconcile()
        at_work = {row.run for row in self.running()} if still else set()
        return [promise for promise in still if promise.run not in at_work]

    # -- runs --------------------------------------------------------------------------------------------------------

    def begin_run(self, run: str, folder: Path, pid: int) -> None:
        """A run is under way, in this process.

        Raises:
            StoreError: it cannot be written.
        """
        self._store.begin_run(run, str(folder), processes.host(), processes.identity(pid))

    def end_run(self, run: str) -> None:
        """A run has come to its end.

        Raises:
            StoreError: it cannot be written.
        """
        self._store.end_run(run)

    def stopping(self, run: str) -> None:
        """A run has begun to undo everything.

        Raises:
            StoreError: it cannot be written.
        """
        self._store.stopping(run)

    def request_halt(self, run: str, text: str) -> None:
        """Say who wants a run to end, before its process is signalled.

        Raises:
            StoreError: it cannot be written.
        """
        self._store.request_halt(run, text)

    def run(self, run: str) -> RunRow | None:
        """One run, or None.

        Raises:
            StoreError: the store cannot be read.
        """
        return self._store.run(run)

    def running(self) -> list[RunRow]:
        """The runs whose controller lives, as far as can be known from here: on this machine.

        Raises:
            StoreError: the store cannot be read.
        """
        here = processes.host()
        return [
            row
            for row in self._store.unended_runs()
            if row.host != here or processes.alive(row.controller) is not False
        ]


def gone_with_lab(place: Mapping[str, Any]) -> str | None:
    """The proof that a fault has gone because the lab in which it was has; None where there is no such proof."""
    keeper = place.get("keeper")
    if keeper is None or processes.alive(keeper) is not False:
        return None
    what = "this machine has booted since" if keeper["boot"] != processes.boot_id() else "it has ended"
    return (
        f"gone with its lab: the keeper (process {keeper['pid']}) held every process and namespace of the lab in "
        f"{place['lab']}, and {what}"
    )

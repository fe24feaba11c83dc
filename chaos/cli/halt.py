"""The command ``chaos halt``, and what every other command says of promises that nobody keeps any more."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from chaos.cli.console import ERROR, WRONG_INPUT, err, fail, one_line_errors, out

if TYPE_CHECKING:
    from chaos.engine.ledger import Ledger
    from chaos.store import PromiseRow, RunRow

MOST = 5  # lines of open promises


def halt(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A running run's id or its beginning.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Halt every run of this machine.")] = False,
) -> None:
    """Stop a run and undo everything it has done, from any folder.

    Exit code: 0 everything is proven undone (or nothing runs), 2 wrong input, 5 something is open: it says what.
    """
    from concurrent.futures import ThreadPoolExecutor

    from chaos.engine import halt as engine
    from chaos.engine.ledger import Ledger
    from chaos.store import StoreError
    from chaos.store_file import location

    if run is not None and everything:
        raise fail("name one RUN, or --all of them")
    if not location().exists():
        out().print("no run is under way")
        return
    with one_line_errors(), Ledger.open() as ledger:
        try:
            rows = ledger.running() if run is None else [engine.find(ledger, run)]
            if not rows:
                out().print("no run is under way")
                return
            if run is None and not everything and len(rows) > 1:
                err().print("chaos: several runs are under way, name one of them, or --all:", markup=False)
                for row in rows:
                    err().print(f"  {row.run}  since {row.began}  {row.folder}", markup=False)
                raise typer.Exit(WRONG_INPUT)
            asked = f"halted by 'chaos halt' (process {os.getpid()}, user {os.geteuid()})"
            with ThreadPoolExecutor(len(rows)) as pool:  # all at once, and none waits for another
                undone = list(pool.map(lambda row: _halted(ledger, row, asked), rows))
        except StoreError as error:
            raise fail(str(error), ERROR) from None
    if not all(undone):
        raise typer.Exit(ERROR)


def _halted(ledger: Ledger, row: RunRow, asked: str) -> bool:
    """End one run and say how. Returns whether everything is proven undone."""
    from chaos.engine import halt as engine
    from chaos.engine.errors import InputError

    try:
        halted = engine.halt(ledger, row, asked)
    except InputError as error:
        err().print(f"chaos: {error}", markup=False)
        return False
    how = {
        "ended": "has ended",
        "killed": "did not react and was killed",
        "lasts": "has begun to undo, and has not come to its end",
    }[halted.how]
    what = "not everything is proven undone" if halted.still else "everything is undone"
    out().print(f"run {halted.run} {how}: {what}", markup=False)
    _list(halted.still)
    return not halted.still


def _list(promises: list[PromiseRow]) -> None:
    for promise in promises[:MOST]:
        err().print(
            f"chaos: open: fault {promise.fault} ({promise.kind}) on {_where(promise)} since {promise.promised}: "
            "chaos sweep --all clears it",
            markup=False,
        )
    if len(promises) > MOST:
        err().print(f"chaos: and {len(promises) - MOST} more", markup=False)


def _where(promise: PromiseRow) -> str:
    place = promise.place
    if place["transport"] == "local":
        return f"this machine (records in {place['state']})"
    node = place["node"] if place["node"] == "head" else f"node {place['node']}"
    return f"{node} of the lab in {place['lab']}"


def tell_open() -> None:
    """Say on standard error which faults of dead controllers are not proven undone."""
    from chaos.engine.look import look_here
    from chaos.store_file import location, may_be_open

    if may_be_open(location()):
        from chaos.engine.errors import InputError
        from chaos.engine.ledger import Ledger
        from chaos.store import StoreError

        try:
            with Ledger.open() as ledger:
                _list(ledger.orphaned())
        except (InputError, StoreError) as error:
            err().print(f"chaos: {error}; whether a fault of a former run is still open is not known", markup=False)
    for left in look_here():
        err().print(f"chaos: on this node: {left}: chaos sweep clears it", markup=False)

"""The commands that run something: ``chaos run``, ``chaos replay``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from chaos.cli.console import (
    ABORTED,
    ERROR,
    EXIT_CODES,
    PASS,
    WRONG_INPUT,
    fail,
    one_line_errors,
    out,
    runs_folder,
    unblocking,
)

if TYPE_CHECKING:
    from chaos.engine.folder import RunFolder
    from chaos.engine.plan import Plan
    from chaos.engine.run import Watcher
    from chaos.engine.stop import Stop

RunsOption = Annotated[
    Path | None, typer.Option("--runs", help="Folder for runs.", show_default="CHAOS_RUNS, or ./runs", metavar="FOLDER")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the verdict.")]

# Exit codes by what came of a rehearsal.
REHEARSED = {"ready": PASS, "not possible": WRONG_INPUT, "interrupted": ABORTED, "broken off": ERROR, "open": ERROR}


def run(  # noqa: PLR0917 - a command's options
    experiment: Annotated[str, typer.Argument(help="An experiment: a file, or the name of a shipped one.")],
    runs: RunsOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.", metavar="N")] = None,
    recovery: Annotated[
        Literal["none", "restart", "checkpoint", "peer"] | None, typer.Option(help="Override the workload's recovery.")
    ] = None,
    no_faults: Annotated[bool, typer.Option("--no-faults", help="Break nothing: a control run.")] = False,
    quiet: QuietOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the whole plan; start nothing.")] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Probe, arm, witness and disarm every fault for real; fire none.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run or --rehearse: for machines.")] = False,
) -> None:
    """Run an experiment: steady state, fault, recovery, proof, score.

    Exit code: 0 pass, 1 fail, 2 wrong input, 3 inconclusive, 4 aborted (everything undone), 5 error. With --dry-run:
    0, or 2 if a limit forbids the run. With --rehearse: 0 if every fault can be made, 2 if not, 4 interrupted, 5 error.
    """
    from chaos.cli import shipped
    from chaos.engine import documents
    from chaos.engine import plan as plans

    if dry_run and rehearse:
        raise fail("--dry-run starts nothing, --rehearse does: name one of them")
    if as_json and not dry_run and not rehearse:
        raise fail("--json is for a plan: add --dry-run or --rehearse")
    with one_line_errors():
        path = shipped.find(experiment)
        document, site = documents.read(path)
        if recovery is not None:
            workload = document.workload.model_copy(update={"recovery": recovery})
            document = document.model_copy(update={"workload": workload})
        if no_faults:
            document = document.model_copy(update={"faults": []})
        now = datetime.now(UTC)
        if dry_run:
            raise _show(plans.expand(document, now, seed, site), now, as_json=as_json)
        plan = plans.draw(document, now, seed, site)
        source = path.read_text(encoding="utf-8")
        if rehearse:
            raise typer.Exit(_rehearse(plan, source, now, runs, quiet=quiet, as_json=as_json))
        code = _carry_out(plan, source, runs, quiet=quiet)
    raise typer.Exit(code)


def replay(
    recorded: Annotated[str, typer.Argument(metavar="RUN", help="A run's id or its beginning, its folder, or `last`.")],
    runs: RunsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Repeat a recorded run: the same experiment, and the same faults at the same instants.

    Exit codes are those of `chaos run`.
    """
    from chaos.engine import folder as folders
    from chaos.engine import replay as replays

    with one_line_errors():
        former = replays.read(folders.find(runs_folder(runs), recorded))
        code = _carry_out(replays.draw(former, datetime.now(UTC)), former.source, runs, quiet=quiet)
    raise typer.Exit(code)


def _show(plan: Plan, now: datetime, *, as_json: bool) -> typer.Exit:
    """Print a plan, and each limit that it passes as an error. Returns the exit that this means."""
    from chaos.cli import plan as plan_page
    from chaos.engine import plan as plans

    limits = plans.reached(plan, now)
    if as_json:
        print(plan_page.as_json(plan, limits))
    else:
        plan_page.show(out(at_least=100), plan, limits)
        out(at_least=100).print("\nNothing was started.")
    problems = [fail(limit.problem) for limit in limits if limit.problem is not None]
    return typer.Exit(WRONG_INPUT if problems else PASS)


def _rehearse(plan: Plan, source: str, now: datetime, runs: Path | None, *, quiet: bool, as_json: bool) -> int:
    """Rehearse a plan and show what came of it. Returns the exit code."""
    from chaos.cli import plan as plan_page
    from chaos.engine import plan as plans
    from chaos.engine.rehearsal import Rehearsal

    limits = plans.reached(plan, now)
    where, stop = _begin(runs, plan)
    with _stopping(stop), _watching(stop, quiet=quiet or as_json) as watcher:
        rehearsed = Rehearsal(plan, where, source=source, watcher=watcher, stop=stop).rehearse()
    if as_json:
        print(plan_page.as_json(plan, limits, rehearsal=asdict(rehearsed)))
    else:
        plan_page.show(out(at_least=100), plan, limits)
        plan_page.show_rehearsal(out(at_least=100), rehearsed)
    return REHEARSED[rehearsed.conclusion]


def _carry_out(plan: Plan, source: str, runs: Path | None, *, quiet: bool) -> int:
    """Run a plan and show its verdict. Returns the exit code."""
    from chaos.cli import terminal
    from chaos.cli.runs import render
    from chaos.engine import run as engine
    from chaos.engine.errors import RunError

    where, stop = _begin(runs, plan)
    with _stopping(stop):
        with _watching(stop, quiet=quiet) as watcher:
            card = engine.Run(plan, where, source=source, watcher=watcher, stop=stop).execute()
        try:
            render(card, where)
        except OSError as error:
            raise RunError(f"{where.path}: the scorecard cannot be written: {error.strerror}") from error
        with unblocking(sys.stdout) as console:
            terminal.show_verdict(console, card, where.path)
    return EXIT_CODES[card["verdict"]]


def _begin(runs: Path | None, plan: Plan) -> tuple[RunFolder, Stop]:
    from chaos.engine import folder as folders
    from chaos.engine import run as engine
    from chaos.engine.stop import Stop

    engine.preflight(plan)
    return folders.create(runs_folder(runs), plan.run), Stop()


def _stopping(stop: Stop) -> AbstractContextManager[None]:
    """A signal, however late, ends no undo and cuts no report short."""
    from chaos.engine.stop import on_signals

    return on_signals(stop, last=True)


@contextmanager
def _watching(stop: Stop, *, quiet: bool) -> Iterator[Watcher]:
    """Tell the terminal; one that has gone stops the run, unless it was started to outlive it."""
    from chaos.cli import terminal
    from chaos.engine.stop import hangup_ignored

    def vanished() -> None:
        if not hangup_ignored():
            stop.pull("signal", "the terminal has gone")

    with unblocking(sys.stderr, vanished) as console, terminal.watcher(console, quiet=quiet) as watcher:
        yield watcher

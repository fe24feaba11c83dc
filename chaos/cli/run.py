"""The commands that run something: ``chaos run``, ``chaos replay``."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from chaos.cli.console import EXIT_CODES, PASS, WRONG_INPUT, fail, one_line_errors, out, runs_folder, unblocking

if TYPE_CHECKING:
    from chaos.engine.plan import Plan

RunsOption = Annotated[
    Path | None, typer.Option("--runs", help="Folder for runs.", show_default="CHAOS_RUNS, or ./runs", metavar="FOLDER")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the verdict.")]


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
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print the plan as JSON.")] = False,
) -> None:
    """Run an experiment: steady state, fault, recovery, proof, score.

    Exit code: 0 pass, 1 fail, 2 wrong input, 3 inconclusive, 4 aborted (everything undone), 5 error. With --dry-run:
    0, or 2 if a limit forbids the run.
    """
    from chaos.cli import shipped
    from chaos.engine import plan as plans
    from chaos.engine.catalogue import catalogue
    from chaos.experiment import load

    if as_json and not dry_run:
        raise fail("--json is for a plan: add --dry-run")
    with one_line_errors():
        path = shipped.find(experiment)
        document = load(path, catalogue(), os.environ)
        if recovery is not None:
            workload = document.workload.model_copy(update={"recovery": recovery})
            document = document.model_copy(update={"workload": workload})
        if no_faults:
            document = document.model_copy(update={"faults": []})
        now = datetime.now(UTC)
        if dry_run:
            raise _show(plans.expand(document, now, seed), now, as_json=as_json)
        plan = plans.draw(document, now, seed)
        code = _carry_out(plan, path.read_text(encoding="utf-8"), runs, quiet=quiet)
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
    problems = [fail(limit.problem) for limit in limits if limit.problem is not None]
    return typer.Exit(WRONG_INPUT if problems else PASS)


def _carry_out(plan: Plan, source: str, runs: Path | None, *, quiet: bool) -> int:
    """Run a plan and show its verdict. Returns the exit code."""
    from chaos.cli import terminal
    from chaos.cli.runs import render
    from chaos.engine import folder as folders
    from chaos.engine import run as engine
    from chaos.engine.errors import RunError
    from chaos.engine.stop import Stop, hangup_ignored, on_signals

    engine.preflight()
    where = folders.create(runs_folder(runs), plan.run)
    stop = Stop()

    def vanished() -> None:
        if not hangup_ignored():
            stop.pull("signal", "the terminal has gone")

    # A signal, however late, ends no undo and cuts no report short.
    with on_signals(stop, last=True):
        with unblocking(sys.stderr, vanished) as console, terminal.watcher(console, quiet=quiet) as watcher:
            card = engine.Run(plan, where, source=source, watcher=watcher, stop=stop).execute()
        try:
            render(card, where)
        except OSError as error:
            raise RunError(f"{where.path}: the scorecard cannot be written: {error.strerror}") from error
        with unblocking(sys.stdout) as console:
            terminal.show_verdict(console, card, where.path)
    return EXIT_CODES[card["verdict"]]

"""The command ``chaos run``."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from chaos.cli.console import EXIT_CODES, one_line_errors, runs_folder, unblocking


def run(  # noqa: PLR0917 - a command's options
    experiment: Annotated[str, typer.Argument(help="An experiment: a file, or the name of a shipped one.")],
    runs: Annotated[
        Path | None, typer.Option(help="Folder for runs.", show_default="CHAOS_RUNS, or ./runs", metavar="FOLDER")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.", metavar="N")] = None,
    recovery: Annotated[
        Literal["none", "restart", "checkpoint", "peer"] | None, typer.Option(help="Override the workload's recovery.")
    ] = None,
    no_faults: Annotated[bool, typer.Option("--no-faults", help="Break nothing: a control run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the verdict.")] = False,
) -> None:
    """Run an experiment: steady state, fault, recovery, proof, score.

    Exit code: 0 pass, 1 fail, 2 wrong input, 3 inconclusive, 4 aborted (everything undone), 5 error.
    """
    from chaos.cli import shipped, terminal
    from chaos.cli.runs import render
    from chaos.engine import folder as folders
    from chaos.engine import plan as plans
    from chaos.engine import run as engine
    from chaos.engine.catalogue import catalogue
    from chaos.engine.errors import RunError
    from chaos.engine.stop import Stop, hangup_ignored, on_signals
    from chaos.experiment import load

    with one_line_errors():
        path = shipped.find(experiment)
        document = load(path, catalogue(), os.environ)
        if recovery is not None:
            workload = document.workload.model_copy(update={"recovery": recovery})
            document = document.model_copy(update={"workload": workload})
        if no_faults:
            document = document.model_copy(update={"faults": []})
        plan = plans.draw(document, datetime.now(UTC), seed)
        engine.preflight()
        where = folders.create(runs_folder(runs), plan.run)
        stop = Stop()

        def vanished() -> None:
            if not hangup_ignored():
                stop.pull("signal", "the terminal has gone")

        # A signal, however late, ends no undo and cuts no report short.
        with on_signals(stop, last=True):
            with unblocking(sys.stderr, vanished) as console, terminal.watcher(console, quiet=quiet) as watcher:
                source = path.read_text(encoding="utf-8")
                card = engine.Run(plan, where, source=source, watcher=watcher, stop=stop).execute()
            try:
                render(card, where)
            except OSError as error:
                raise RunError(f"{where.path}: the scorecard cannot be written: {error.strerror}") from error
            with unblocking(sys.stdout) as console:
                terminal.show_verdict(console, card, where.path)
    raise typer.Exit(EXIT_CODES[card["verdict"]])

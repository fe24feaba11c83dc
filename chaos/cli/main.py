"""The entry point ``chaos``: puts the commands together. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from chaos import __version__
from chaos.cli import document, lab, run, runs
from chaos.cli.console import crash

app = typer.Typer(
    name="chaos",
    help="Break one thing of an AI training cluster for a bounded time, prove it, undo it, and score the recovery.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run)
app.command("replay")(run.replay)
app.command("validate")(document.validate)
app.command("schema")(document.schema)
app.command("experiments")(document.experiments)
app.command("report")(runs.report)
app.command("explain")(runs.explain)
app.add_typer(runs.app, name="runs")
app.add_typer(lab.app, name="lab")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cluster-chaos {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Options of all commands."""


def main() -> None:
    """Run the command line; no traceback reaches the user."""
    try:
        app()
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - the last resort: one line instead of a traceback
        sys.exit(crash(error))


if __name__ == "__main__":
    main()

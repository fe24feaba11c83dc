"""The entry point ``chaos``: puts the commands together. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated

import typer

from chaos import __version__
from chaos.cli import doctor, document, faults, halt, inventory, lab, run, runs, sweep
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
app.command("halt")(halt.halt)
app.command("sweep")(sweep.sweep)
app.command("validate")(document.validate)
app.command("schema")(document.schema)
app.command("doctor")(doctor.doctor)
app.command("faults")(faults.faults)
app.command("experiments")(document.experiments)
app.command("report")(runs.report)
app.command("explain")(runs.explain)
app.add_typer(runs.app, name="runs")
app.add_typer(lab.app, name="lab")
app.command("init")(inventory.init)
app.add_typer(inventory.app, name="inventory")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cluster-chaos {__version__}")
        raise typer.Exit


# They look at what is open themselves, or nobody asked for anything.
_SILENT = {"halt", "sweep"}


@app.callback()
def _options(
    context: typer.Context,
    _shown: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Options of all commands."""
    if context.invoked_subcommand not in _SILENT and "--help" not in sys.argv:
        halt.tell_open()


def main() -> None:
    """Run the command line; no traceback reaches the user."""
    _complete_streams()
    threading.excepthook = lambda failure: _thread_failed(failure.exc_value)
    try:
        app()
    except BrokenPipeError:
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:  # noqa: BLE001 - the last resort: one line instead of a traceback
        sys.exit(crash(error))


def _complete_streams() -> None:
    """Where a standard stream was closed by whoever started us, no file that we open may take its number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


def _thread_failed(error: BaseException | None) -> None:
    if error is not None:
        crash(error)


if __name__ == "__main__":
    main()

"""What all commands share: the consoles, exit codes, and errors as one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import typer

if TYPE_CHECKING:
    from rich.console import Console

PASS, FAIL, WRONG_INPUT, INCONCLUSIVE, ABORTED, ERROR = range(6)
EXIT_CODES = {"pass": PASS, "fail": FAIL, "inconclusive": INCONCLUSIVE, "aborted": ABORTED, "error": ERROR}


@cache
def out(at_least: int = 0) -> Console:
    """Standard output, taken to be at least so many characters wide."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, at_least)
    return console


@cache
def err() -> Console:
    """Standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def unblocking(stream: TextIO | None, gone: Callable[[], None] = lambda: None) -> Iterator[Console]:
    """A console on standard output or error that never holds anybody up (see ``chaos.cli.output``).

    Args:
        gone: called once, on another thread, when nobody can read it any more.
    """
    from rich.console import Console

    from chaos.cli.output import Unblocking

    file = Unblocking(stream, gone)
    try:
        yield Console(file=cast("TextIO", file), highlight=False, soft_wrap=True)
    finally:
        file.finish()


def fail(message: str, code: int = WRONG_INPUT) -> typer.Exit:
    """Print one line on standard error; raise what is returned."""
    err().print(f"chaos: {message}", markup=False)
    return typer.Exit(code)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn our own errors into one line and the exit code that they mean."""
    from chaos.documents.errors import DocumentErrors  # without the documents' models, which take longer to load
    from chaos.engine.errors import InputError, RunError
    from chaos.lab.errors import LabError

    try:
        yield
    except DocumentErrors as errors:
        err().print(str(errors), markup=False)
        raise typer.Exit(WRONG_INPUT) from None
    except (InputError, LabError) as error:
        raise fail(str(error)) from None
    except RunError as error:
        raise fail(str(error), ERROR) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise fail(f"{where}{error.strerror or error}") from None


def runs_folder(given: Path | None) -> Path:
    """The folder of runs: as given, from ``CHAOS_RUNS``, or ``runs`` here."""
    return given or Path(os.environ.get("CHAOS_RUNS", "runs"))


def crash(error: BaseException) -> int:
    """An error of ours that nobody expected: one line, the trace into a file, exit code 5."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="chaos-crash-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    print(f"chaos: internal error: {type(error).__name__}: {error} (details: {file.name})", file=sys.stderr)
    return ERROR

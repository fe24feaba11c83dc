"""Commands on runs that have been: list, prune, report, explain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chaos.cli.console import fail, one_line_errors, out, runs_folder

if TYPE_CHECKING:
    from chaos.engine.folder import RunFolder

app = typer.Typer(help="List and prune runs.", invoke_without_command=True, rich_markup_mode=None)

RunsOption = Annotated[
    Path | None, typer.Option("--runs", help="Folder of runs.", show_default="CHAOS_RUNS, or ./runs", metavar="FOLDER")
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id or its beginning, its folder, or `last`.")]


def render(card: dict[str, Any], folder: RunFolder) -> list[Path]:
    """Write the scorecard's pages into a run's folder."""
    from chaos.report import render as report

    return report.render(card, folder.read_journal(), folder.read_steps(), folder.path)


@app.callback()
def list_runs(context: typer.Context, runs: RunsOption = None) -> None:
    """List the runs, newest last."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from chaos.engine import folder as folders

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("run", "verdict", "RTO", "consistency", "size"):
        table.add_column(column, justify="right" if column == "size" else "left")
    found = folders.everything(runs_folder(runs))
    for folder in found:
        verdict, rto, consistency = _summary(folder)
        table.add_row(folder.path.name, verdict, rto, consistency, f"{folders.size(folder) / 1e6:.1f} MB")
    if found:
        out().print(table)
    else:
        out().print(f"no runs in {runs_folder(runs)}: chaos run nvswitch makes one")


def _summary(folder: RunFolder) -> tuple[str, str, str]:
    if folder.rehearsal.exists():
        return "rehearsal", "", ""
    try:
        card = json.loads(folder.scorecard.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "not scored", "", ""
    rto, consistency = card.get("rto") or {}, card.get("consistency") or {}
    ms, ratio = rto.get("ms"), consistency.get("ratio")
    return (
        str(card.get("verdict")),
        "" if ms is None else f"{ms:.0f} ms",
        "" if ratio is None else f"{ratio:.4%} of {consistency.get('compared')}",
    )


@app.command()
def prune(
    keep: Annotated[int, typer.Option(min=0, help="The newest runs that always stay.")] = 20,
    size: Annotated[
        str | None, typer.Option(help="Only until all runs take no more than this.", metavar="SIZE")
    ] = None,
    runs: RunsOption = None,
) -> None:
    """Remove the oldest runs that have ended."""
    from chaos import quantities
    from chaos.engine import folder as folders

    with one_line_errors():
        try:
            limit = None if size is None else int(quantities.parse("size", size))
        except quantities.QuantityError as error:
            raise fail(f"--size {size}: {error}") from None
        for folder in folders.prune(runs_folder(runs), keep=keep, bytes_at_most=limit):
            out().print(f"removed {folder.path.name}")


def report(run: RunArgument, runs: RunsOption = None) -> None:
    """Rebuild a run's scorecards from its journal and steps alone."""
    from chaos.engine import folder as folders
    from chaos.engine import outcome

    with one_line_errors():
        folder = folders.find(runs_folder(runs), run)
        card = outcome.score(folder)
        for path in [folder.scorecard, *render(card, folder)]:
            out().print(str(path), markup=False)


def explain(run: RunArgument, runs: RunsOption = None) -> None:
    """Say in a few lines why a run's verdict is what it is, and what to change."""
    from chaos.engine import folder as folders
    from chaos.engine import outcome
    from chaos.report import explain as explanation

    with one_line_errors():
        card = outcome.score(folders.find(runs_folder(runs), run), write=False)
        for line in explanation.explain(card):
            out().print(line, markup=False)

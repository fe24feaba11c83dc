"""The command ``chaos doctor``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chaos.cli.console import FAIL, fail, one_line_errors, out

if TYPE_CHECKING:
    from chaos.engine.doctor import Diagnosis

SCHEMA = "chaos.doctor/1"


def doctor(
    cluster: Annotated[
        Path | None, typer.Option("--cluster", help="Ask the nodes of an inventory.", metavar="FILE")
    ] = None,
    nodes: Annotated[
        list[str] | None, typer.Option("--node", help="With --cluster: only these (names, ranges, groups, labels).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say what can be injected here, and for everything else the one thing that would enable it. Changes nothing.

    Exit code: 0 all is possible and nothing is left of former faults, 1 something is missing, left or unknown, 2 wrong
    input.
    """
    from chaos.engine import doctor as engine

    if nodes and cluster is None:
        raise fail("--node needs --cluster: the inventory that has it")
    with one_line_errors():
        if cluster is None:
            found = [engine.this_machine(), engine.the_lab()]
            found[1].checks.clear()  # it has the kernel of this machine
        else:
            try:
                found = engine.machines(str(cluster.absolute()), nodes)
            except ValueError as error:
                raise fail(str(error)) from error
    if as_json:
        print(json.dumps({"schema": SCHEMA, "nodes": [each.as_json() for each in found]}, indent=1))
    else:
        for each in found:
            _tell(each, whole=cluster is None)
    if not all(each.well for each in found):
        raise typer.Exit(FAIL)


def _tell(found: Diagnosis, *, whole: bool) -> None:
    """One node; of a cluster's many, only what is missing."""
    from rich.table import Table

    console = out(at_least=100)
    if found.error is not None:
        console.print(f"[bold]{found.name}[/]  [bold red]cannot be asked[/]")
        console.print(f"  {found.error}\n", markup=False)
        return
    offset, uncertainty = found.clock["wall_offset_s"], found.clock["uncertainty_s"]
    clock = f"wall clock {1000 * offset:+.0f} ms to ours (within {1000 * uncertainty:.0f} ms)"
    console.print(f"[bold]{found.name}[/]  Python {found.python}; {clock}")
    for what in found.left:
        console.print(f"  [bold red]left of a former fault:[/] {what}")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for fault in found.faults:
        if fault.missing:
            table.add_row(f"  {fault.kind}", "[red]not possible[/]", "; ".join(fault.missing))
        else:
            table.add_row(f"  {fault.kind}", "[green]possible[/]", fault.reality)
    console.print(table)
    checks = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for _ in range(3):
        checks.add_column(overflow="fold")
    for check in found.checks:
        if check["ok"] and not whole:
            continue
        remedy = f"[dim]{check['found']}[/]" if check["ok"] else f"{check['found']}: {check['remedy']}"
        checks.add_row(f"  {check['name']}", "[green]ok[/]" if check["ok"] else "[yellow]missing[/]", remedy)
    console.print(checks)
    console.print()

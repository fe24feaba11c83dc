"""The command ``chaos faults``: what can be broken, and how."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from chaos.cli.console import one_line_errors, out

if TYPE_CHECKING:
    from chaos.engine.faultbook import Kind

SCHEMA = "chaos.faults/1"


def faults(
    kind: Annotated[str | None, typer.Argument(help="A kind of fault, such as process.signal.", metavar="KIND")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """List the kinds of faults, or explain one: its parameters, and how it is made, witnessed, undone and proven gone.

    `chaos doctor` says which of them can be made here.
    """
    from chaos.engine import faultbook

    with one_line_errors():
        shown = faultbook.kinds() if kind is None else [faultbook.find(kind)]
        if as_json:
            print(json.dumps({"schema": SCHEMA, "faults": [each.as_json() for each in shown]}, indent=1))
        elif kind is None:
            _table(shown)
        else:
            _explain(shown[0])


def _table(kinds: list[Kind]) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("kind", "what", "where", "reversal", "danger"):
        table.add_column(column, overflow="fold")
    for each in kinds:
        table.add_row(f"[bold]{each.kind}[/]", each.about, each.grounds, each.reversal, each.danger or "none")
    out(at_least=100).print(table)
    out().print("\n`chaos faults KIND` explains one, `chaos doctor` says which can be made here.")


def _explain(kind: Kind) -> None:
    from rich.table import Table

    from chaos.engine.faultbook import DURATIONS, REVERSALS, TARGETS

    console = out(at_least=100)
    console.print(f"[bold]{kind.kind}[/]  {kind.about}\n")
    facts = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    for name, value in (
        ("where", kind.grounds),
        ("aimed at", " or ".join(f"on: {TARGETS[key]}" for key in kind.targets)),
        ("duration", DURATIONS[kind.duration].replace("`", "")),
        ("made", kind.mechanism),
        ("witnessed", kind.witnessed),
        ("undone", f"{REVERSALS[kind.reversal]}: {kind.undoing}"),
        ("proven gone", kind.proof),
        ("danger", f"{kind.danger}: write danger: accepted" if kind.danger else "none"),
    ):
        facts.add_row(name, value)
    console.print(facts)
    if kind.parameters:
        table = Table(title="\nParameters", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
        for column in ("name", "takes", "default", ""):
            table.add_column(column, overflow="fold")
        for each in kind.parameters:
            default = "required" if each.required else each.default or ""
            table.add_row(f"[bold]{each.name}[/]", each.takes, default, each.help)
        console.print(table)
    console.print("\n[bold]Example[/]\n")
    console.print(kind.example, markup=False, highlight=False)

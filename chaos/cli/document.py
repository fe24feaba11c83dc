"""Commands on documents: validate, schema, experiments."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from chaos.cli.console import WRONG_INPUT, err, one_line_errors, out


def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Experiments, by file or shipped name.")],
) -> None:
    """Check experiments without running anything; every error is shown with its place."""
    from chaos.cli import shipped
    from chaos.engine import documents
    from chaos.engine.errors import InputError
    from chaos.experiment import DocumentErrors

    wrong = False
    for name in files:
        try:
            path = shipped.find(name)
            experiment, _ = documents.read(path)
        except (DocumentErrors, InputError) as error:
            err().print(str(error), markup=False)
            wrong = True
        else:
            count = len(experiment.faults)
            out().print(f"{path}: {experiment.name}: {count} fault{'' if count == 1 else 's'}, valid", markup=False)
    if wrong:
        raise typer.Exit(WRONG_INPUT)


def schema(
    inventory: Annotated[bool, typer.Option("--inventory", help="Of an inventory instead.")] = False,
) -> None:
    """Print the JSON Schema of an experiment, for completion in editors."""
    if inventory:
        from chaos.inventory.schema import json_schema as of_inventory

        print(json.dumps(of_inventory(), indent=2, ensure_ascii=False))
        return
    from chaos.engine.catalogue import catalogue
    from chaos.experiment import json_schema

    with one_line_errors():
        print(json.dumps(json_schema(catalogue()), indent=2, ensure_ascii=False))


def experiments() -> None:
    """List the experiments that are shipped; `chaos run NAME` runs one."""
    from rich.table import Table

    from chaos.cli import shipped
    from chaos.engine import documents

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    with one_line_errors():
        for name, path in shipped.everything().items():
            experiment = documents.outline(path)
            kinds = ", ".join(dict.fromkeys(fault.inject for fault in experiment.faults)) or "no fault"
            table.add_row(f"[bold]{name}[/]", kinds, experiment.about)
    out().print(table)

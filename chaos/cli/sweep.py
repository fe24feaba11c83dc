"""The command ``chaos sweep``."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chaos.cli.console import FAIL, fail, one_line_errors, out

if TYPE_CHECKING:
    from chaos.engine.ledger import Ledger
    from chaos.engine.sweep import Swept


def sweep(
    node: Annotated[
        str | None,
        typer.Option("--node", help="A node of a lab that stays, or its `head`; nodes of an inventory.", metavar="N"),
    ] = None,
    lab: Annotated[str, typer.Option("--lab", help="That lab's name.", metavar="NAME")] = "lab",
    cluster_file: Annotated[
        Path | None,
        typer.Option("--cluster", help="An inventory: all of its nodes, or those that --node selects.", metavar="FILE"),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="This node, all labs that stay, and wherever a promise is open.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Undo what dead controllers and agents have left: by promises, by records, and by our mark in the kernel.

    Without options, on this node. Exit code: 0 all is clean, 1 something is left or cannot be told, 2 wrong input.
    """
    from chaos.engine import sweep as engine
    from chaos.lab import cluster

    if everything and (node is not None or cluster_file is not None):
        raise fail("--all is this node, all labs that stay and every open promise: it takes no --node and no --cluster")
    with one_line_errors(), ExitStack() as stack:
        ledger = _ledger(stack)
        if everything:
            places = engine.everywhere([] if ledger is None else ledger.orphaned())
        elif cluster_file is not None:
            places = engine.on_machines(cluster_file, node)
        elif node is not None:
            client = cluster.find(lab)
            known = [str(each["node"]) for each in client.show()["nodes"]]
            if node not in (*known, engine.HEAD):
                raise fail(f"lab {lab!r} has no node {node!r}: {', '.join(known)} and {engine.HEAD} are there")
            places = [engine.on_lab(client, node if node == engine.HEAD else int(node))]
        else:
            places = [engine.here()]
        results = engine.sweep(places, ledger)
        unkept = [] if ledger is None or not everything else [promise.fault for promise in ledger.orphaned()]
    clean = all(result.clean for result in results) and not unkept
    if as_json:
        print(json.dumps({"clean": clean, "places": [each.as_json() for each in results], "open": unkept}, indent=1))
    else:
        for result in results:
            _tell(result)
        for fault in unkept:
            out().print(f"open: fault {fault} is not proven undone", markup=False)
    if not clean:
        raise typer.Exit(FAIL)


def _ledger(stack: ExitStack) -> Ledger | None:
    """The ledger, unless nothing in it is open."""
    from chaos.store_file import location, may_be_open

    if not may_be_open(location()):
        return None
    from chaos.engine.ledger import Ledger

    return stack.enter_context(Ledger.open())


def _tell(result: Swept) -> None:
    what = "clean" if result.clean else "NOT CLEAN"
    out().print(f"{result.name}: {what}", markup=False)
    for verb, texts in (
        ("undone", result.undone),
        ("removed, which had no record", result.cleared),
        ("held by a living agent or guardian", result.held),
        ("left", result.left),
        ("unknown", result.unknown),
    ):
        for text in texts:
            out().print(f"  {verb}: {text}", markup=False)

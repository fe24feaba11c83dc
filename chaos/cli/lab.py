"""The commands ``chaos lab``: up, down, show, exec."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from chaos.cli.console import fail, one_line_errors, out

app = typer.Typer(
    help="An emulated cluster that stays until it is taken down.", no_args_is_help=True, rich_markup_mode=None
)

DEFAULT_NAME = "lab"
NameOption = Annotated[str, typer.Option("--lab", help="The lab's name.", metavar="NAME")]
NameArgument = Annotated[str, typer.Argument(metavar="[NAME]", help="The lab's name.")]


@app.command()
def up(
    name: NameArgument = DEFAULT_NAME,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 2,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs in each node.")] = 2,
    spare_nodes: Annotated[int, typer.Option(min=0, help="Further nodes, idle until something is lost.")] = 1,
) -> None:
    """Bring up a lab that stays."""
    from chaos.lab import cluster
    from chaos.lab.topology import LabSpec

    with one_line_errors():
        try:
            spec = LabSpec(nodes, gpus, spare_nodes)
        except ValueError as error:
            raise fail(str(error)) from None
        cluster.up(name, spec)
    out().print(f"lab {name} is up: chaos lab show {name}")


@app.command()
def down(name: NameArgument = DEFAULT_NAME) -> None:
    """Take a lab down, with everything that runs in it."""
    from chaos.lab import cluster

    with one_line_errors():
        cluster.down(name)
    out().print(f"lab {name} is down")


@app.command()
def show(name: NameArgument = DEFAULT_NAME) -> None:
    """Draw a lab: nodes, GPUs, links with their state and what has passed over them."""
    from chaos.lab import cluster, draw

    with one_line_errors():
        told = cluster.find(name).show(links=True)
        out(draw.WIDTH).print(draw.tree(name, told))


@app.command(
    "exec",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
def execute(
    where: Annotated[str, typer.Argument(metavar="NODE[:GPU]", help="0, node1, 1:0, or head.")],
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="What to run there.")],
    lab: NameOption = DEFAULT_NAME,
) -> None:
    """Run a command on a node, in a GPU's network namespace, or on the head; its exit code is ours."""
    from chaos.lab import cluster
    from chaos.lab.topology import parse_target

    with one_line_errors():
        client = cluster.find(lab)
        try:
            node, gpu = parse_target(where, client.spec)
        except ValueError as error:
            raise fail(str(error)) from None
        argv = command[1:] if command[:1] == ["--"] else command
        if not argv:
            raise fail("no command is given: chaos lab exec NODE -- CMD...")
        process = client.spawn(argv, node=node, gpu=gpu, env=os.environ, stdin=0, stdout=1, stderr=2)
        # The command is in a session of its own: what the terminal sends us is passed on.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, _: process.signal(received))
        code = process.wait()
    assert code is not None
    sys.exit(code if code >= 0 else 128 - code)

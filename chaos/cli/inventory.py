"""The commands ``chaos inventory`` (check, show) and ``chaos init``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chaos.cli.console import FAIL, err, fail, one_line_errors, out

if TYPE_CHECKING:
    from chaos.inventory.access import Access
    from chaos.inventory.first import Asked
    from chaos.inventory.model import Inventory, Node
    from chaos.inventory.sources import Candidate

app = typer.Typer(
    help="The machines of a cluster, and how they are reached.", no_args_is_help=True, rich_markup_mode=None
)

SCHEMA = "chaos.inventory/1"
_WIDTH = 200  # a row a node, for people and for grep
DEFAULT_FILE = Path("inventory.yaml")
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="An inventory.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines.")]


@app.command()
def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check an inventory: the document, and that the secrets and files that it refers to are there. No node is touched.

    Exit code: 0 all is well, 1 something is not there, 2 the document is wrong.
    """
    from chaos.inventory.presence import gaps

    inventory = _load(file)
    found = gaps(inventory)
    missing = [gap for gap in found if gap.fatal]
    if as_json:
        told = [{"for": g.what, "nodes": g.nodes, "problem": g.problem, "fatal": g.fatal} for g in found]
        print(json.dumps({**_as_dict(inventory, inventory.nodes), "gaps": told}, indent=2, ensure_ascii=False))
    else:
        _table(inventory.nodes)
        for gap in found:
            how = "MISSING" if gap.fatal else "weak"
            out().print(f"{how}: {gap.what} of {gap.nodes}: {gap.problem}", markup=False)
        many = len(inventory.nodes)
        verdict = "something is missing" if missing else "valid"
        out().print(f"{file}: {inventory.name}: {many} node{'' if many == 1 else 's'}, {verdict}", markup=False)
    if missing:
        raise typer.Exit(FAIL)


@app.command()
def show(
    file: FileArgument,
    selection: Annotated[
        str, typer.Argument(metavar="SELECTION", help="Names, a range such as node[1-4], a group, KEY=VALUE, or all.")
    ] = "all",
    as_json: JsonOption = False,
) -> None:
    """Show all that holds for the selected nodes, defaults and groups included; of secrets, where they are."""
    from chaos.inventory.select import SelectionError, select

    inventory = _load(file)
    try:
        nodes = select(inventory, selection)
    except SelectionError as error:
        raise fail(str(error)) from None
    if as_json:
        print(json.dumps(_as_dict(inventory, nodes), indent=2, ensure_ascii=False))
        return
    for node in nodes:
        _details(node)


def init(  # noqa: PLR0917 - a command's options
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to write it.")] = DEFAULT_FILE,
    slurm: Annotated[bool, typer.Option("--slurm", help="The nodes that scontrol shows.")] = False,
    ssh_config: Annotated[
        Path | None, typer.Option("--ssh-config", metavar="PATH", help="The Host entries of an ssh configuration.")
    ] = None,
    hosts: Annotated[str | None, typer.Option("--hosts", metavar="LIST", help="Hosts: a,b,node[1-4].")] = None,
    name: Annotated[str, typer.Option("--name", help="The cluster's name.")] = "cluster",
    user: Annotated[str | None, typer.Option("--user", help="The user on the nodes.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="The port of their sshd.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="PATH", help="A private key's file.")] = None,
    ask: Annotated[bool, typer.Option("--ask/--no-ask", help="Ask the nodes what they have.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a first inventory, from Slurm, an ssh configuration or a list of hosts, by asking the nodes what they have.

    A node that is not reached is written all the same, with the reason. Exit code: 0 it was written and is valid,
    1 it was written and must be corrected, 2 wrong input.
    """
    from chaos.documents.errors import DocumentErrors
    from chaos.engine.inventories import asking_over_ssh
    from chaos.inventory.first import Asked, Common, ask_all, write
    from chaos.inventory.load import load
    from chaos.inventory.sources import SourceError

    if sum((slurm, ssh_config is not None, hosts is not None)) != 1:
        raise fail("say where the nodes are from: one of --slurm, --ssh-config PATH, --hosts LIST")
    if not force and os.path.lexists(file):  # before anybody waits for the nodes; and again when it is written
        raise fail(f"{file} is there already: name another file, or write over it with --force")
    common = Common(user, port, _absolute(key), _other_config(ssh_config))
    try:
        candidates, source = _candidates(slurm, ssh_config, hosts)
    except SourceError as error:
        raise fail(str(error)) from None
    if ask:
        asked = ask_all(candidates, common, asking_over_ssh(), _tell)
    else:
        asked = [Asked(each, problem="not asked") for each in candidates]
    with one_line_errors():
        try:
            with file.open("w" if force else "x", encoding="utf-8") as stream:
                stream.write(write(name, asked, common, source))
        except FileExistsError:
            raise fail(f"{file} is there already: name another file, or write over it with --force") from None
    reached = sum(each.facts is not None for each in asked)
    out().print(f"{file}: {len(asked)} nodes, {reached} of them told what they have", markup=False)
    try:
        load(file, os.environ)
    except DocumentErrors as errors:
        err().print(str(errors), markup=False)
        out().print("It must be corrected: chaos inventory check tells when it is right.")
        raise typer.Exit(FAIL) from None


def _candidates(slurm: bool, ssh_config: Path | None, hosts: str | None) -> tuple[list[Candidate], str]:
    from chaos.inventory import sources

    if slurm:
        return sources.from_slurm(), "Slurm"
    if ssh_config is not None:
        return sources.from_ssh_config(ssh_config), str(ssh_config)
    return sources.from_hosts(hosts or ""), "a list of hosts"


def _tell(asked: Asked) -> None:
    if asked.problem is not None:
        err().print(f"{asked.candidate.name}: not reached: {asked.problem}", markup=False)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().absolute()


def _other_config(path: Path | None) -> Path | None:
    """The ssh configuration, where it is not the one that is read anyway."""
    absolute = _absolute(path)
    return None if absolute == Path("~/.ssh/config").expanduser() else absolute


def _load(file: Path) -> Inventory:
    from chaos.inventory.load import load

    with one_line_errors():
        return load(file, os.environ)


def _as_dict(inventory: Inventory, nodes: Sequence[Node]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "inventory": inventory.name,
        "about": inventory.about,
        "file": inventory.file,
        "groups": {name: [node.name for node in members] for name, members in inventory.groups.items()},
        "nodes": [node.as_dict() for node in nodes],
    }


def _table(nodes: Sequence[Node]) -> None:
    from rich.markup import escape
    from rich.table import Table

    columns: dict[str, list[str]] = {
        "node": [node.name for node in nodes],
        "reached at": [_way(node.access) for node in nodes],
        "root by": [node.access.become for node in nodes],
        "groups": [", ".join(node.groups) for node in nodes],
        "labels": [_labels(node) for node in nodes],
        "devices": [_accelerators(node) for node in nodes],
        "NICs": [_nics(node) for node in nodes],
        "BMC": [_bmc(node) for node in nodes],
    }
    told = {heading: cells for heading, cells in columns.items() if any(cells)}
    table = Table(*told, box=None, padding=(0, 2, 0, 0))
    for row in zip(*told.values(), strict=True):
        table.add_row(*map(escape, row))
    out(_WIDTH).print(table)


def _details(node: Node) -> None:
    access = node.access
    rows = [
        ("reached at", _way(access)),
        ("key", str(access.key or "ssh-agent, or the usual files")),
        ("python", access.python),
        ("root by", access.become),
        ("groups", ", ".join(node.groups)),
        ("labels", _labels(node)),
        ("devices", _accelerators(node)),
        *((f"  {each.name}", each.pci) for each in node.devices().values() if each.nic is None and each.pci),
        *((f"NIC {each.name}", _nic(each.role, each.rdma, each.pci)) for each in node.nics),
        ("BMC", _bmc(node)),
        *((what, str(secret)) for what, secret in node.secrets().items()),
    ]
    out().print(f"[bold]{node.name}[/]")
    for what, told in rows:
        if told:
            out().print(f"  {what:<18} {told}", markup=False)


def _way(access: Access) -> str:
    user = f"{access.user}@" if access.user else ""
    host = f"[{access.host}]" if ":" in access.host and access.port else access.host
    port = f":{access.port}" if access.port else ""
    return f"{user}{host}{port}{f' by {_way(access.jump)}' if access.jump else ''}"


def _labels(node: Node) -> str:
    return ", ".join(f"{key}={value}" for key, value in node.labels.items())


def _accelerators(node: Node) -> str:
    found = (("GPU", node.gpus), ("NPU", node.npus))
    return ", ".join(
        " ".join(filter(None, (str(each.number), each.vendor, each.model, kind)))
        for kind, each in found
        if each is not None
    )


def _nics(node: Node) -> str:
    from chaos.inventory.ranges import fold

    named = ((role, fold(nic.name for nic in node.nics if nic.role == role)) for role in ("control", "data"))
    return ", ".join(f"{names} ({role})" for role, names in named if names)


def _nic(role: str, rdma: str | None, pci: str | None) -> str:
    never = ", never a target" if role == "control" else ""
    return f"{role}{never}{f', RDMA {rdma}' if rdma else ''}{f', at {pci}' if pci else ''}"


def _bmc(node: Node) -> str:
    if node.bmc is None:
        return ""
    user = f"{node.bmc.user}@" if node.bmc.user else ""
    port = f":{node.bmc.port}" if node.bmc.port else ""
    return f"{node.bmc.protocol}://{user}{node.bmc.address}{port}"

"""Draws a lab's topology for a terminal, from what ``LabClient.show(links=True)`` tells."""

from __future__ import annotations

from typing import Any

from rich.text import Text
from rich.tree import Tree

WIDTH = 110  # characters that a line takes at the most; a terminal may be narrower, or a pipe
_UNITS = ("B", "kB", "MB", "GB", "TB")


def tree(name: str, told: dict[str, Any]) -> Tree:
    """The whole lab as a tree: spine, nodes, NVSwitches, GPUs, with the state and the bytes of each link."""
    spec = told["spec"]
    size = f"{spec['nodes']} nodes x {spec['gpus']} GPUs" + (
        f" + {spec['spare_nodes']} spare" if spec["spare_nodes"] else ""
    )
    root = Tree(Text.assemble(("lab ", "bold"), (name, "bold cyan"), f"  {size}"))
    ports = {link["name"]: link for link in told.get("spine", [])}
    spine = root.add(Text("spine", style="bold"))
    for node in told["nodes"]:
        spine.add(_node(node, ports.get(f"rail{node['node']}")))
    return root


def _node(node: dict[str, Any], port: dict[str, Any] | None) -> Tree:
    on = node["power"] == "on"
    head = Text.assemble(
        _link(port, "RDMA rail") if port else Text("no link", style="red"),
        (f"  node{node['node']}", "bold"),
        " spare" if node["spare"] else "",
        (f"  {node['power']}", "green" if on else "bold red"),
        (f"  boot {node['boot_id'][:8]}" if on else "", "dim"),
        (f"  {node['processes']} processes" if on else "", "dim"),
    )
    branch = Tree(head)
    if on:
        switch = branch.add(Text("NVSwitch", style="bold"))
        ports = {link["name"]: link for link in node["nvswitch"]}
        for gpu, links in enumerate(node["gpus"]):
            own = {link["name"]: link for link in links}
            switch.add(
                Text.assemble(
                    _link(ports[f"nvl{gpu}"], "NVLink"),
                    (f"  gpu{gpu}", "bold"),
                    "   ",
                    _link(own["pcie0"], "PCIe to the node"),
                )
            )
    return branch


def _link(link: dict[str, Any], name: str) -> Text:
    up = link["state"] == "up"
    return Text.assemble(
        f"{name} ",
        (link["state"], "green" if up else "bold red"),
        (f" rx {_bytes(link['rx_bytes'])} tx {_bytes(link['tx_bytes'])}", "dim"),
    )


def _bytes(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"

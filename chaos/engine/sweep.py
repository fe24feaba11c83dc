"""Reconciles what was promised, what is recorded, and what the kernel says: on this node, on a lab's, or everywhere.

A node's own agent does the work: it undoes every fault that nobody holds any more, and removes what bears our mark
without a record. What it says closes the ledger's promises; what it cannot tell stays open.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.engine.errors import InputError
from chaos.engine.kinds import implementations
from chaos.lab import cluster
from chaos.lab.client import LabClient
from chaos.lab.errors import LabError
from chaos.transport import lab as lab_transport
from chaos.transport import local
from chaos.transport.pipe import AgentClient, AgentError

if TYPE_CHECKING:  # the database's layer takes longer to load than a sweep of a clean node; mostly nothing is open
    from chaos.engine.ledger import Ledger
    from chaos.engine.site import Machine
    from chaos.store import PromiseRow

LOG = Path(os.devnull)  # what an agent prints beside its answers
HEAD = "head"


@dataclass
class Swept:
    """What came of one place.

    Attributes:
        name: the place, in words.
        undone: faults whose record was left and that are undone now, with their kind.
        cleared: objects without a record that bore our mark and are removed.
        held: faults that somebody living holds; they end by their deadline.
        left: what is not undone.
        unknown: what could not be told, which is never taken for clean.
    """

    name: str
    undone: list[str] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing is left there, and that is known."""
        return not self.left and not self.unknown

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self) | {"clean": self.clean}


@dataclass(frozen=True)
class Place:
    """Where faults may be: a node, by the way to its agent."""

    name: str
    start: Callable[[], AgentClient]
    matches: Callable[[Mapping[str, Any]], bool]


def here() -> Place:
    """This machine, or the node in which this process runs."""
    return _local(str(local.state_folder()), "this node")


def on_lab(lab: LabClient, node: int | str) -> Place:
    """A lab's node, or its ``"head"``."""
    name = f"{'the head' if node == HEAD else f'node {node}'} of the lab in {lab.directory}"

    def matches(place: Mapping[str, Any]) -> bool:
        return (place.get("transport"), place.get("lab"), place.get("node")) == ("lab", str(lab.directory), node)

    number = None if node == HEAD else int(node)
    return Place(name, lambda: lab_transport.start(lab, number, LOG, lambda _: None), matches)


def on_machine(inventory: str, node: str) -> Place:
    """A node of an inventory, by the inventory's path."""

    def start() -> AgentClient:
        from chaos.engine import inventories  # noqa: PLC0415 - it takes longer to load than a sweep of a clean node

        try:
            machine = inventories.find(inventory, node)
        except ValueError as error:
            raise AgentError(f"{node} cannot be reached: {error}") from error
        return machine.agent(LOG, lambda _: None)

    def matches(place: Mapping[str, Any]) -> bool:
        return (place.get("transport"), place.get("inventory"), place.get("node")) == ("ssh", inventory, node)

    return Place(f"{node} of {inventory}", start, matches)


def on_machines(inventory: Path, selection: str | None) -> list[Place]:
    """The nodes of an inventory, whatever the ledger says of them.

    Args:
        selection: which, as an inventory selects; None is all of them.

    Raises:
        InputError: the inventory cannot be read, or has no such nodes.
    """
    from chaos.engine import inventories  # noqa: PLC0415 - as above

    def place(machine: Machine) -> Place:
        mine = machine.place()
        return Place(
            f"{machine.name} of {inventory}",
            lambda: machine.agent(LOG, lambda _: None),
            lambda promised: {key: promised.get(key) for key in mine} == mine,
        )

    try:
        found = inventories.machines(str(inventory.absolute()), None if selection is None else [selection])
    except ValueError as error:
        raise InputError(str(error)) from error
    return [place(machine) for machine in found]


def everywhere(promises: Sequence[PromiseRow]) -> list[Place]:
    """This machine, every lab that stays, and wherever a promise is open."""
    places = {"here": here()}
    for lab in [cluster.find(name) for name in cluster.labs()]:
        try:
            nodes = lab.show()["nodes"]
        except LabError:  # killed: its processes and namespaces went with it
            continue
        for node in [*(each["node"] for each in nodes if each["power"] == "on"), HEAD]:
            places[f"{lab.directory} {node}"] = on_lab(lab, node)
    for promise in promises:
        place = promise.place
        if place["transport"] == "local":
            places.setdefault(place["state"], _local(place["state"], f"the controller's agent in {place['state']}"))
        elif place["transport"] == "ssh":
            places.setdefault(f"{place['inventory']} {place['node']}", on_machine(place["inventory"], place["node"]))
        else:
            lab = LabClient(Path(place["lab"]))
            places.setdefault(f"{lab.directory} {place['node']}", on_lab(lab, place["node"]))
    return list(places.values())


def sweep(places: Iterable[Place], ledger: Ledger | None) -> list[Swept]:
    """Put these places in order, all at once, and close the promises that are proven kept.

    Args:
        ledger: the controller's promises; None where there never was a controller.
    """
    promises = [] if ledger is None else ledger.orphaned()
    results = []
    threads = []
    for place in places:
        result = Swept(place.name)
        mine = [promise for promise in promises if place.matches(promise.place)]
        thread = threading.Thread(target=_one, args=(place, result, ledger, mine), daemon=True)
        thread.start()
        results.append(result)
        threads.append(thread)
    for thread in threads:
        thread.join()
    return results


def _local(state: str, name: str) -> Place:
    def matches(place: Mapping[str, Any]) -> bool:
        return (place.get("transport"), place.get("state")) == ("local", state)

    return Place(name, lambda: local.start(Path(state), LOG, lambda _: None, name=name), matches)


def _one(place: Place, result: Swept, ledger: Ledger | None, promises: Sequence[PromiseRow]) -> None:
    try:
        agent = place.start()
    except AgentError as error:
        result.unknown.append(str(error))
        return
    try:
        told = agent.request(
            "sweep",
            implementations=implementations(),
            copies=[promise.record for promise in promises if promise.record is not None],
        )
        for swept in [*agent.hello["swept"], *told["swept"]]:
            if not swept["residue"]:
                result.undone.append(f"{swept['fault']} ({swept['kind']})")
        for key in ("cleared", "held", "left", "unknown"):
            getattr(result, key).extend(told[key])
        if ledger is not None:
            _settle(promises, agent, ledger, result)
    except AgentError as error:
        result.unknown.append(str(error))
    finally:
        agent.kill()


def _settle(promises: Iterable[PromiseRow], agent: AgentClient, ledger: Ledger, result: Swept) -> None:
    """Close the promises that the node proves kept."""
    from chaos.store import StoreError  # noqa: PLC0415 - see above

    for promise in promises:
        told = agent.request("status", fault=promise.fault, record=promise.record)
        if told["residue"]:
            result.left += [f"fault {promise.fault}: {what}" for what in told["residue"]]
        elif not told["held"] and not told["record"]:  # those the sweep itself has told of
            try:
                ledger.close_promise(promise.fault, f"{agent.name}: swept; there is no record, and nothing is left")
            except StoreError as error:
                result.unknown.append(str(error))

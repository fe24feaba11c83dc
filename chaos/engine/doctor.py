"""What can be injected where: asks a node what it has and allows, and which kinds of faults are possible there."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos.engine import faultbook
from chaos.engine.catalogue import catalogue, implementation
from chaos.engine.documents import anywhere
from chaos.experiment import loads
from chaos.lab.cluster import Lab
from chaos.lab.errors import LabError
from chaos.lab.topology import LabSpec as Size
from chaos.transport import lab as lab_transport
from chaos.transport import local
from chaos.transport.pipe import AgentClient, AgentError

LOG = Path(os.devnull)
AT_ONCE = 32  # nodes that are asked at the same time
Start = Callable[[], AgentClient]


@dataclass(frozen=True)
class Possible:
    """Whether a kind of fault can be made there.

    Attributes:
        missing: what is missing, each with its remedy; empty where it is possible.
    """

    kind: str
    reality: str | None
    missing: list[str]


@dataclass
class Diagnosis:
    """One node, or the lab on this machine.

    Attributes:
        error: why it could not be asked.
        python: of its agent.
        checks: what it has and allows: ``name``, ``ok``, ``found``, ``remedy``.
        faults: every kind that is for such a place.
        left: what is left there of former faults.
        clock: ``wall_offset_s`` (its wall clock against ours) and ``uncertainty_s``.
    """

    name: str
    error: str | None = None
    python: str | None = None
    checks: list[dict[str, Any]] = field(default_factory=list)
    faults: list[Possible] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    clock: dict[str, float] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        """Whether nothing is left there, and every kind of fault is possible."""
        return self.error is None and not self.left and all(not each.missing for each in self.faults)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self) | {"well": self.well}


def this_machine() -> Diagnosis:
    """The machine of this process, by an agent that changes nothing."""
    name, state = "this machine", local.state_folder()
    return _ask(name, lambda: local.start(state, LOG, lambda _: None, name=name, looks=True))


def the_lab() -> Diagnosis:
    """The lab, as it can be had on this machine: a small one is brought up for it, and taken down."""
    name = "the lab on this machine"
    with tempfile.TemporaryDirectory(prefix="chaos-doctor-") as folder:
        try:
            with Lab.up(Size(nodes=2, gpus=2, spare_nodes=1), Path(folder) / "lab") as lab:
                return _ask(name, lambda: lab_transport.start(lab, 0, LOG, lambda _: None), lab=str(lab.directory))
        except LabError as error:
            return Diagnosis(name, error=str(error))


def machines(inventory: str, names: Sequence[str] | None) -> list[Diagnosis]:
    """The nodes of an inventory, many at once.

    Args:
        names: a selection; all of them if it is None.

    Raises:
        ValueError: the inventory cannot be read, or has no such nodes.
    """
    from chaos.engine import inventories  # noqa: PLC0415 - it takes longer to load than everything else

    found = inventories.machines(inventory, names)

    def one(machine: Any) -> Diagnosis:
        return _ask(machine.name, lambda: machine.agent(LOG, lambda _: None))

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(one, found))
    finally:
        for machine in found:
            machine.close()


def _ask(name: str, start: Start, *, lab: str | None = None) -> Diagnosis:
    """Ask a node by an agent there.

    Args:
        lab: folder of the lab's keeper, where it is a lab's node.
    """
    found = Diagnosis(name)
    ground = "node" if lab is None else "lab"
    try:
        agent = start()
    except AgentError as error:
        found.error = str(error)
        return found
    try:
        found.python = agent.hello["python"]
        found.left = list(agent.hello["left"])
        sent = time.time_ns()
        told = agent.request("examine")
        received = time.time_ns()
        found.checks = told["checks"]
        found.clock = {
            "wall_offset_s": (told["wall_ns"] - received) / 1e9,
            "uncertainty_s": (received - sent) / 1e9,
        }
        for kind in faultbook.kinds():
            if ground in kind.where:
                found.faults.append(_possible(agent, kind, lab))
    except AgentError as error:
        found.error = str(error)
    finally:
        agent.kill()
    return found


def _possible(agent: AgentClient, kind: faultbook.Kind, lab: str | None) -> Possible:
    """Ask with the parameters and the target of the kind's own example."""
    fault = loads(kind.example, catalogue(), {}, clusters=anywhere).faults[0]
    first = {key: value[0] if isinstance(value, list) else value for key, value in fault.on.model_dump().items()}
    target = {
        "node": None if lab is None else first["node"],
        "lab": lab,
        "gpu": first["gpu"],
        "rank": first["rank"],
        "role": first["process"],
    }
    try:
        told = agent.request("probe", implementation=implementation(kind.kind), params=fault.with_, target=target)
    except AgentError as error:
        if agent.gone:
            raise
        return Possible(kind.kind, None, [str(error)])
    return Possible(kind.kind, told["reality"], list(told["missing"]))

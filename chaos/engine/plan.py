"""Draws a run: which faults happen, on what, from the recorded seed. Pure, apart from the seed if none is given."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chaos.engine import chance, limits
from chaos.engine.catalogue import implementation, injectors
from chaos.engine.errors import InputError
from chaos.engine.limits import Limit
from chaos.engine.site import Site
from chaos.experiment import Experiment, Occurrence
from chaos.lab.topology import LabSpec

MOST_FAULTS = 1000  # of one run: each has a thread of its own in the controller


@dataclass(frozen=True)
class PlannedFault:
    """One fault of a run: one occurrence, at one target.

    Attributes:
        id: unique in the world; marks every kernel object made for it.
        spec: the fault of the document with its single target and its drawn instant.
        drawn: whether chance lets it happen.
        on_node: whether the agent of where its target is holds it (else the controller's own).
    """

    id: str
    spec: Occurrence
    implementation: str
    drawn: bool
    on_node: bool

    def as_json(self) -> dict[str, Any]:
        """For the journal's ``plan``."""
        return {
            "id": self.id,
            "name": self.spec.name,
            "kind": self.spec.inject,
            "target": self.spec.on.model_dump(exclude_none=True),
            "params": self.spec.with_,
            "after_s": self.spec.after,
            "for_s": self.spec.for_,
            "drawn": self.drawn,
        }


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    Attributes:
        run: its id, which is also its folder's name.
        seed: of every random choice.
        lab: the size of the cluster.
        site: its machines, where it is no lab.
    """

    run: str
    experiment: Experiment
    seed: int
    lab: LabSpec
    faults: tuple[PlannedFault, ...]
    site: Site | None = None

    @property
    def drawn(self) -> tuple[PlannedFault, ...]:
        """The faults that happen."""
        return tuple(fault for fault in self.faults if fault.drawn)

    def node_of(self, fault: PlannedFault) -> int | None:
        """The node on which a fault's target starts; None for the job's launcher, which is on none."""
        on = fault.spec.on
        if on.process is not None:
            return None
        if on.node is not None:
            return on.node
        if on.rank is not None:
            return self.lab.place(on.rank)[0]
        return 0


def draw(experiment: Experiment, now: datetime, seed: int | None = None, site: Site | None = None) -> Plan:
    """Plan a run, within its limits.

    Args:
        now: UTC, for the run's id and the windows in which it is allowed.
        seed: overrides the experiment's own.
        site: the machines, where the cluster is no lab.

    Raises:
        InputError: the experiment asks for something that cannot be done, or passes its own limits.
    """
    plan = expand(experiment, now, seed, site)
    for limit in reached(plan, now):
        if limit.problem is not None:
            raise InputError(limit.problem)
    return plan


def reached(plan: Plan, now: datetime) -> list[Limit]:
    """What a plan reaches of each limit; ``now`` (UTC) is when it would begin."""
    assert plan.experiment.lab is not None, "expand has refused it otherwise"
    return limits.reached(plan.experiment, plan.experiment.lab, [fault.spec for fault in plan.drawn], now)


def expand(experiment: Experiment, now: datetime, seed: int | None = None, site: Site | None = None) -> Plan:
    """Draw a run without holding it against its limits. Arguments and errors are those of ``draw``."""
    if experiment.lab is None or (site is None) != (experiment.cluster == "lab"):
        raise InputError(f"cluster: the nodes of {experiment.cluster!r} are not known")
    if site is None and experiment.workload.reference is None:
        raise InputError("workload: only `reference: llama-bytes` runs in the lab in this version")
    if site is not None and experiment.workload.reference is not None:
        raise InputError("workload: the reference trainer runs in the lab alone; write `command` or `attach`")
    without_launcher = experiment.workload.without_launcher  # the recovery may be another than the document's
    for spec in experiment.faults:
        if spec.on.process is not None and without_launcher is not None:
            raise InputError(f"fault {spec.name!r} is aimed at the {spec.on.process}, but {without_launcher}")
        where = injectors()[spec.inject].where
        if ("lab" if site is None else "node") not in where:
            only = "in the lab" if site is not None else "on machines"
            raise InputError(f"fault {spec.name!r}: {spec.inject} can be made {only} alone, see `chaos faults`")
    if seed is None:
        seed = experiment.seed if experiment.seed is not None else secrets.randbelow(2**31)
    run = f"{now:%Y%m%d-%H%M%S}-{experiment.name}-{secrets.token_hex(2)}"
    size = experiment.lab
    occurrences = [each for fault in experiment.faults for each in chance.draw(fault, size, seed)]
    if len(occurrences) > MOST_FAULTS:
        raise InputError(
            f"the experiment asks for {len(occurrences)} faults; {MOST_FAULTS} are possible in one run: "
            "write fewer targets or occurrences"
        )
    faults = tuple(
        PlannedFault(
            id=f"{run}-{number}",
            spec=spec,
            implementation=implementation(spec.inject),
            drawn=drawn,
            on_node=injectors()[spec.inject].runs_on == "node",
        )
        for number, (spec, drawn) in enumerate(occurrences)
    )
    return Plan(run, experiment, seed, LabSpec(size.nodes, size.gpus, size.spare_nodes), faults, site)

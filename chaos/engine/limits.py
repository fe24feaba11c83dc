"""The blast radius of a drawn plan: what it reaches of each limit, before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from chaos.engine.catalogue import catalogue
from chaos.experiment import Experiment, LabSpec, Occurrence
from chaos.experiment.places import Device, devices_of, named_gpus, node_of, protected_nodes
from chaos.experiment.radius import most_at_once
from chaos.quantities import format as show

# Until every rank has imported, joined and completed a step the job is waited for; then it warms up: caches, frequency,
# the network's neighbour tables.
WARM_UP = 1.0


@dataclass(frozen=True)
class Limit:
    """One guard, with what a plan reaches of it.

    Attributes:
        allowed: what the guard allows; None where it is not set.
        problem: what is over it, and what would be right; None where nothing is.
    """

    guard: str
    reached: str
    allowed: str | None
    problem: str | None = None


def reached(experiment: Experiment, lab: LabSpec, faults: Sequence[Occurrence], now: datetime) -> list[Limit]:
    """Every guard that is known before a run, for these drawn faults; ``now`` is aware."""
    nodes = sorted({node for fault in faults if (node := node_of(fault.on, lab)) is not None})
    devices = sorted({device for fault in faults for device in _devices(fault, lab)})
    return [
        _count("nodes_at_most", experiment.guards.nodes_at_most, [f"node {node}" for node in nodes], "nodes"),
        _count("devices_at_most", experiment.guards.devices_at_most, [f"{n}:gpu{g}" for n, g in devices], "GPUs"),
        _share(experiment.guards.share_at_most, [node for node in nodes if node < lab.nodes], lab),
        _at_once(experiment.guards.at_once_at_most, faults),
        _protect(experiment, lab, faults),
        _allowed(experiment, faults, now),
    ]


def _devices(fault: Occurrence, lab: LabSpec) -> set[Device]:
    return devices_of(fault.on, named_gpus(catalogue().injectors[fault.inject].params, fault.with_), lab)


def _count(guard: str, limit: int | None, touched: list[str], what: str) -> Limit:
    listed = f" ({', '.join(touched)})" if touched else ""
    problem = None
    if limit is not None and len(touched) > limit:
        problem = (
            f"the faults touch {len(touched)} {what}{listed}, guards.{guard} allows {limit}: "
            "allow that many, or aim at fewer"
        )
    return Limit(guard, f"{len(touched)}{listed}", None if limit is None else str(limit), problem)


def _share(limit: float | None, touched: list[int], lab: LabSpec) -> Limit:
    share = len(touched) / lab.nodes
    said = f"{len(touched)} of the job's {lab.nodes} nodes ({show('ratio', round(share, 4))})"
    if limit is None:
        return Limit("share_at_most", said, None)
    allowed = show("ratio", limit)
    problem = f"the faults touch {said}, guards.share_at_most allows {allowed}: allow that share, or aim at fewer"
    return Limit("share_at_most", said, allowed, problem if share > limit else None)


def _at_once(limit: int | None, faults: Sequence[Occurrence]) -> Limit:
    most, when = most_at_once([(fault.after, fault.end) for fault in faults])
    instant = f"{show('duration', round(when, 6))} after the gate"
    problem = None
    if limit is not None and most > limit:
        problem = (
            f"{most} faults are in effect at once ({instant}), guards.at_once_at_most allows {limit}: "
            "allow that many, set them apart, or try another seed"
        )
    return Limit(
        "at_once_at_most", f"{most} ({instant})" if most else "0", None if limit is None else str(limit), problem
    )


def _protect(experiment: Experiment, lab: LabSpec, faults: Sequence[Occurrence]) -> Limit:
    protected = protected_nodes(experiment.guards.protect, lab)
    hit = next((fault for fault in faults if node_of(fault.on, lab) in protected), None)
    allowed = f"not node {', '.join(map(str, sorted(protected)))}" if protected else None
    if hit is None:
        return Limit("protect", "none touched" if protected else "none", allowed)
    touched = f"{hit.name} touches node {node_of(hit.on, lab)}"
    problem = f"fault {hit.name!r} touches node {node_of(hit.on, lab)}, which guards.protect forbids: aim elsewhere"
    return Limit("protect", touched, allowed, problem)


def _allowed(experiment: Experiment, faults: Sequence[Occurrence], now: datetime) -> Limit:
    """From now to the end of the last fault, if the job takes as long to start as it may."""
    ahead = experiment.workload.starts_within + WARM_UP + experiment.steady_state.baseline
    ahead += max((fault.end for fault in faults), default=0.0)
    end = now + timedelta(seconds=ahead)
    said = f"{now:%a %H:%M} to {end:%a %H:%M} {now:%Z}".strip()
    windows = experiment.guards.allowed
    if not windows:
        return Limit("allowed", said, None)
    listed = ", or ".join(map(str, windows))
    problem = f"the run may last from {said}, guards.allowed has {listed}: start in a window that has room for it"
    admitted = any(window.admits(now, end) for window in windows)
    return Limit("allowed", said, listed, None if admitted else problem)

"""The blast radius as far as a document alone tells it: what is over a limit however chance draws.

A fault that chance may leave out, or that may pick other targets, is for the plan to judge, once it is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos import quantities
from chaos.documents.errors import Finding, suggestion
from chaos.experiment.base import attempt
from chaos.experiment.catalogue import Catalogue
from chaos.experiment.model import Fault, Guards, LabSpec, Place
from chaos.experiment.places import LABELS, Device, devices_of, named_gpus, node_of, places, protected_nodes


@dataclass(frozen=True)
class _Certain:
    """A fault that will happen: it hits ``number`` of its ``places``, each of which touches a node and devices."""

    index: int
    fault: Fault
    places: list[Place]
    number: int
    nodes: list[int | None]
    devices: list[set[Device]] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether all of its targets are hit."""
        return self.number >= len(self.places)

    def least_nodes(self, lab: LabSpec | None) -> int:
        """The fewest nodes that it can touch; with a lab, of those that the job runs on."""
        shared = Counter(node for node in self.nodes if node is not None and (lab is None or node < lab.nodes))
        left, touched = self.number - (len(self.places) - shared.total()), 0
        for count in sorted(shared.values(), reverse=True):
            if left <= 0:
                break
            left, touched = left - count, touched + 1
        return touched

    def least_devices(self) -> int:
        """The fewest devices that it can touch; no two of its targets share one."""
        return sum(sorted(len(each) for each in self.devices)[: self.number])


def check(read: Mapping[str, Any], catalogue: Catalogue) -> list[Finding]:
    """What is over a limit in a document whose parameters are in SI already."""
    guards, lab = attempt(Guards, read.get("guards", {})), attempt(LabSpec, read.get("lab"))
    if guards is None:
        return []
    written = read.get("faults")
    faults = list(_certain(written if isinstance(written, list) else [], lab, catalogue))
    return [
        *_protected_exist(guards, lab),
        *_protected(faults, guards, lab),
        *_nodes(faults, guards),
        *_devices(faults, guards),
        *_share(faults, guards, lab),
        *_at_once(faults, guards),
    ]


def _certain(written: Iterable[object], lab: LabSpec | None, catalogue: Catalogue) -> Iterator[_Certain]:
    for index, each in enumerate(written):
        fault = attempt(Fault, each)
        if fault is None or fault.probability < 1:
            continue
        targets = places(fault.on, lab)
        devices: list[set[Device]] = []
        info = catalogue.injectors.get(fault.inject)
        if lab is not None and info is not None:
            devices = [devices_of(place, named_gpus(info.params, fault.with_), lab) for place in targets]
        nodes = [node_of(place, lab) for place in targets]
        yield _Certain(index, fault, targets, fault.number_of(len(targets)), nodes, devices)


def most_at_once(spans: Collection[tuple[float, float]]) -> tuple[int, float]:
    """The most spans (start, end) that hold at one instant, and the first such instant.

    One that ends as another begins does not overlap it; an empty one holds at its start.
    """
    # At one instant: first what ends, then what starts, then the ends of the empty.
    changes = [(start, 1, 1) for start, _ in spans] + [(end, 0 if end > start else 2, -1) for start, end in spans]
    running, most, when = 0, 0, 0.0
    for instant, _, change in sorted(changes):
        running += change
        if running > most:
            most, when = running, instant
    return most, when


def _nodes(faults: list[_Certain], guards: Guards) -> Iterator[Finding]:
    sure = {node for each in faults if each.whole for node in each.nodes if node is not None}
    least = max((each.least_nodes(None) for each in faults), default=0)
    yield from _count("nodes_at_most", guards.nodes_at_most, sorted(map(str, sure)), least, "nodes")


def _devices(faults: list[_Certain], guards: Guards) -> Iterator[Finding]:
    sure = {device for each in faults if each.whole for touched in each.devices for device in touched}
    least = max((each.least_devices() for each in faults), default=0)
    named = [f"{node}:gpu{gpu}" for node, gpu in sorted(sure)]
    yield from _count("devices_at_most", guards.devices_at_most, named, least, "GPUs")


def _count(key: str, limit: int | None, sure: list[str], least: int, what: str) -> Iterator[Finding]:
    if limit is None or max(len(sure), least) <= limit:
        return
    if len(sure) > limit:
        found = f"the faults touch {len(sure)} {what} ({', '.join(sure)}); allow that many, or aim at fewer"
    else:
        found = f"one fault alone touches {least} {what}; allow that many, or pick fewer"
    yield Finding(("guards", key), f"found {limit}, but {found}")


def _share(faults: list[_Certain], guards: Guards, lab: LabSpec | None) -> Iterator[Finding]:
    if guards.share_at_most is None or lab is None:
        return
    sure = {node for each in faults if each.whole for node in each.nodes if node is not None and node < lab.nodes}
    least = max(len(sure), *(each.least_nodes(lab) for each in faults), 0)
    if least / lab.nodes > guards.share_at_most:
        limit, found = (quantities.format("ratio", round(x, 4)) for x in (guards.share_at_most, least / lab.nodes))
        yield Finding(
            ("guards", "share_at_most"),
            f"found {limit}, but the faults touch {least} of the job's {lab.nodes} nodes ({found}); "
            "allow that share, or aim at fewer",
        )


def _at_once(faults: list[_Certain], guards: Guards) -> Iterator[Finding]:
    """Only faults whose instants are certain are counted."""
    if guards.at_once_at_most is None:
        return
    spans = [
        (start, start + (each.fault.for_ or 0.0))
        for each in faults
        if not each.fault.jitter
        for k in range(each.fault.times or 1)
        for start in [each.fault.after + k * (each.fault.every or 0.0)] * each.number
    ]
    most, when = most_at_once(spans)
    if most > guards.at_once_at_most:
        yield Finding(
            ("guards", "at_once_at_most"),
            f"found {guards.at_once_at_most}, but {most} faults are in effect at once "
            f"{quantities.format('duration', round(when, 9))} after the gate; allow that many, or set them apart",
        )


def _protected_exist(guards: Guards, lab: LabSpec | None) -> Iterator[Finding]:
    if lab is None:
        return
    for i, node in enumerate(guards.protect.nodes):
        if node >= lab.all_nodes:
            has = "only node 0" if lab.all_nodes == 1 else f"nodes 0 to {lab.all_nodes - 1}"
            yield Finding(("guards", "protect", "nodes", i), f"found node {node}, but the lab has {has}")
    for i, label in enumerate(guards.protect.labels):
        if label not in LABELS:
            near = suggestion(label, LABELS)
            yield Finding(("guards", "protect", "labels", i), f"found {label!r}, which no node of the lab has; {near}")


def _protected(faults: list[_Certain], guards: Guards, lab: LabSpec | None) -> Iterator[Finding]:
    protected = protected_nodes(guards.protect, lab)
    for each in faults:
        forbidden = [node for node in each.nodes if node is not None and node in protected]
        if not forbidden or each.number <= len(each.nodes) - len(forbidden):
            continue
        nodes = sorted(set(forbidden))
        listed = f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
        what = f"a target on {listed}" if each.whole else f"too few targets that are not on {listed}"
        yield Finding(
            ("faults", each.index, "on"), f"found {what}, which 'protect' keeps from all faults; aim elsewhere"
        )

"""The single targets of a fault, and which nodes and devices each of them touches."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from chaos.experiment.catalogue import gpu_fields
from chaos.experiment.model import LabSpec, Place, Protect, Target

Device = tuple[int, int]  # a GPU: its node, its number on it

LABELS = ("job", "spare")  # of the lab's nodes
GPU_NAME = re.compile(r"gpu([0-9]{1,6})")


def places(on: Target, lab: LabSpec | None) -> list[Place]:
    """Every single target, in order; none where only the lab's size could tell and is not known."""
    if on.rank is not None:
        return [Place(rank=rank) for rank in _numbers(on.rank, None if lab is None else lab.ranks)]
    if on.node is None:
        return [Place(process=on.process)]
    nodes = _numbers(on.node, None if lab is None else lab.nodes)
    if on.gpu is None:
        return [Place(node=node) for node in nodes]
    gpus = _numbers(on.gpu, None if lab is None else lab.gpus)
    return [Place(node=node, gpu=gpu) for node, gpu in itertools.product(nodes, gpus)]


def _numbers(given: int | list[int] | str, count: int | None) -> list[int]:
    if isinstance(given, int):
        return [given]
    return list(given) if isinstance(given, list) else list(range(count or 0))


def node_of(place: Place, lab: LabSpec | None) -> int | None:
    """The node on which a target starts; None where that cannot be told, or it is on none, as the launcher."""
    if place.rank is not None:
        return None if lab is None else place.rank // lab.gpus
    return place.node


def devices_of(place: Place, named: set[int], lab: LabSpec) -> set[Device]:
    """The GPUs that a target touches: a rank's own, or those of its node, where no parameter has ``named`` some."""
    node = node_of(place, lab)
    if node is None:
        return set()
    if place.rank is not None:
        return {(node, place.rank % lab.gpus)}
    if place.gpu is not None:
        return {(node, place.gpu)}
    return {(node, gpu) for gpu in named or range(lab.gpus)}


def named_gpus(params: type, values: Mapping[str, Any]) -> set[int]:
    """The GPUs of the node that parameters name; ``values`` are by the names of the fields."""
    found = (GPU_NAME.fullmatch(str(values.get(name))) for name in gpu_fields(params))
    return {int(match[1]) for match in found if match}


def protected_nodes(protect: Protect, lab: LabSpec | None) -> set[int]:
    """The nodes that no fault may touch."""
    labelled: set[int] = set()
    if lab is not None:
        labelled |= set(range(lab.nodes)) if "job" in protect.labels else set()
        labelled |= set(range(lab.nodes, lab.all_nodes)) if "spare" in protect.labels else set()
    return labelled | set(protect.nodes)

"""What a fault is aimed at: whether its kind takes such a target, and whether the lab has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from chaos.experiment.catalogue import InjectorInfo, gpu_fields
from chaos.experiment.errors import Finding
from chaos.experiment.fields import DOCUMENT
from chaos.experiment.model import LabSpec, Target

_GPU = re.compile(r"gpu([0-9]{1,6})")
_EXAMPLE = {
    "node": "{node: 0}",
    "gpu": "{node: 0, gpu: 1}",
    "rank": "{rank: 1}",
    "process": "{process: launcher}",
}


def check(
    path: tuple[str | int, ...],
    written: Mapping[str, Any],
    info: InjectorInfo,
    lab: LabSpec | None,
) -> list[Finding]:
    """What is wrong with the target of the fault at ``path``; ``lab`` is None where its size is not known."""
    return [*_target_findings(path, written, info, lab), *_gpu_parameters(path, written, info, lab)]


def _target_findings(
    path: tuple[str | int, ...], written: Mapping[str, Any], info: InjectorInfo, lab: LabSpec | None
) -> list[Finding]:
    target = _target(written.get("on", {}))
    if target is None:
        return []
    on = (*path, "on")
    given = {key: value for key, value in target.model_dump().items() if value is not None}
    found = [
        Finding((*on, key), f"found '{key}', but {info.kind} {_takes(info)}", at_key=True)
        for key in given
        if key not in info.target and not (key == "node" and "gpu" in info.target)  # a GPU is one of a node's
    ]
    if found:
        return found
    if not given and info.target:
        return [Finding(on if "on" in written else path, f"found no target; {info.kind} {_takes(info)}")]
    if message := _unclear(given, info):
        return [Finding(on, message)]
    if lab is None:
        return []
    counts = {"node": lab.all_nodes, "gpu": lab.gpus, "rank": lab.ranks}
    return [
        one for key, value in given.items() if key in counts and (one := _outside((*on, key), value, counts[key], lab))
    ]


def _unclear(given: Mapping[str, object], info: InjectorInfo) -> str | None:
    """What is wrong with these keys together."""
    if "process" in given and len(given) > 1:
        return f"found a process with a {' and a '.join(key for key in given if key != 'process')}; write one of them"
    if "rank" in given and len(given) > 1:
        return "found a rank with a node or gpu; a rank alone says where it runs"
    if "gpu" in given and "node" not in given:
        return "found a gpu without its node; write on: {node: 0, gpu: 1}"
    if set(given) == {"node"} and "node" not in info.target:
        return "found a node without a gpu of it; write on: {node: 0, gpu: 1}"
    return None


def node_of(on: object, lab: LabSpec | None) -> int | None:
    """The node that a target lies on, where that can be told; the launcher lies on none."""
    target = _target(on)
    if target is None:
        return None
    if target.rank is not None and lab is not None:
        return target.rank // lab.gpus
    return target.node


def _target(on: object) -> Target | None:
    try:
        return Target.model_validate(on, context=DOCUMENT)
    except ValidationError:
        return None


def _takes(info: InjectorInfo) -> str:
    if not info.target:
        return "takes no target; leave 'on' out"
    choices = " or ".join(f"on: {_EXAMPLE[key]}" for key in info.target)
    return f"is aimed with {choices}"


def _outside(path: tuple[str | int, ...], value: int, count: int, lab: LabSpec) -> Finding | None:
    if value < count:
        return None
    key = path[-1]
    spare = f" ({lab.spare_nodes} spare among them)" if key == "node" and lab.spare_nodes else ""
    has = f"only {key} 0" if count == 1 else f"{key}s 0 to {count - 1}{spare}"
    return Finding(path, f"found {key} {value}, but the lab has {has}")


def _gpu_parameters(
    path: tuple[str | int, ...], written: Mapping[str, Any], info: InjectorInfo, lab: LabSpec | None
) -> list[Finding]:
    """Parameters that name a GPU of the node must name one that there is."""
    found: list[Finding] = []
    parameters = written.get("with")
    if not isinstance(parameters, dict):
        return found
    for name in gpu_fields(info.params):
        value = parameters.get(name)
        if not isinstance(value, str):
            continue
        match = _GPU.fullmatch(value)
        if match is None:
            found.append(Finding((*path, "with", name), f"found {value!r}; write a GPU of the node, such as gpu0"))
        elif lab is not None and int(match[1]) >= lab.gpus:
            last = f"gpu0 to gpu{lab.gpus - 1}" if lab.gpus > 1 else "only gpu0"
            found.append(Finding((*path, "with", name), f"found {value!r}, but a node of the lab has {last}"))
    return found

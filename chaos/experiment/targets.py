"""What a fault is aimed at: whether its kind takes such a target, and whether the lab has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chaos.documents.errors import Finding
from chaos.experiment.base import attempt
from chaos.experiment.catalogue import InjectorInfo, gpu_fields
from chaos.experiment.model import LabSpec, Target
from chaos.experiment.places import GPU_NAME, places

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
    target = attempt(Target, written.get("on", {}))
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
    outside = [one for key in given if key in counts for one in _outside((*on, key), given[key], counts[key], lab)]
    return outside or list(_too_many(path, written, len(places(target, lab))))


def _too_many(path: tuple[str | int, ...], written: Mapping[str, Any], count: int) -> Iterator[Finding]:
    """No more targets can be picked than there are."""
    pick = written.get("pick")
    if isinstance(pick, int) and not isinstance(pick, bool) and pick > count:
        has = "only one target" if count == 1 else f"{count} targets"
        yield Finding((*path, "pick"), f"found {pick}, but the fault has {has}; write at most {count}")


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


def _takes(info: InjectorInfo) -> str:
    if not info.target:
        return "takes no target; leave 'on' out"
    choices = " or ".join(f"on: {_EXAMPLE[key]}" for key in info.target)
    return f"is aimed with {choices}"


def _outside(path: tuple[str | int, ...], given: object, count: int, lab: LabSpec) -> Iterator[Finding]:
    """Each number that the lab does not have, where it stands."""
    key = path[-1]
    spare = f" ({lab.spare_nodes} spare among them)" if key == "node" and lab.spare_nodes else ""
    has = f"only {key} 0" if count == 1 else f"{key}s 0 to {count - 1}{spare}"
    numbers = enumerate(given) if isinstance(given, list) else [(None, given)]
    for index, number in numbers:
        if isinstance(number, int) and number >= count:
            where = path if index is None else (*path, index)
            yield Finding(where, f"found {key} {number}, but the lab has {has}")


def _gpu_parameters(
    path: tuple[str | int, ...], written: Mapping[str, Any], info: InjectorInfo, lab: LabSpec | None
) -> list[Finding]:
    """Parameters that name a GPU of the node must name one that there is."""
    found: list[Finding] = []
    parameters = written.get("with")
    if not isinstance(parameters, dict):
        return found
    for name in gpu_fields(info.params).values():
        value = parameters.get(name)
        if not isinstance(value, str):
            continue
        match = GPU_NAME.fullmatch(value)
        if match is None:
            found.append(Finding((*path, "with", name), f"found {value!r}; write a GPU of the node, such as gpu0"))
        elif lab is not None and int(match[1]) >= lab.gpus:
            last = f"gpu0 to gpu{lab.gpus - 1}" if lab.gpus > 1 else "only gpu0"
            found.append(Finding((*path, "with", name), f"found {value!r}, but a node of the lab has {last}"))
    return found

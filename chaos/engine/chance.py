"""Chance: which occurrences of a fault happen, when, and at which of its targets. Pure, from the seed alone.

Every occurrence has luck of its own, made of the seed, the fault's name and its number: editing one fault, or letting
it happen more often, changes no other's. All of it comes from ``random()``, the one method of Python's generator whose
sequence is the same in every version.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from chaos.experiment import Fault, LabSpec, Occurrence, Place
from chaos.experiment.places import places


def draw(fault: Fault, lab: LabSpec, seed: int) -> Iterator[tuple[Occurrence, bool]]:
    """Each occurrence at each target that it picked, in order of time, and whether chance lets it happen."""
    targets = places(fault.on, lab)
    for number in range(fault.times or 1):
        luck = random.Random(f"{seed}/{fault.name}/{number}")
        # Each choice draws, certain ones too, and in this order: editing one does not change the luck of the others.
        happens = luck.random() < fault.probability
        start = fault.after + number * (fault.every or 0.0) + fault.jitter * luck.random()
        order = sorted(range(len(targets)), key=lambda _: luck.random())
        for index in sorted(order[: fault.number_of(len(targets))]):
            name = fault.name if number == 0 else f"{fault.name}@{number + 1}"
            if len(targets) > 1:
                name += f"/{_called(targets[index])}"
            yield _occurrence(fault, name, targets[index], round(start, 6)), happens


def _occurrence(fault: Fault, name: str, place: Place, start: float) -> Occurrence:
    kept = {key: getattr(fault, key) for key in ("inject", "with_", "for_", "probability")}
    return Occurrence.model_validate({**kept, "name": name, "on": place, "after": start})


def _called(place: Place) -> str:
    """A target in a fault's name: ``rank3``, ``node1-gpu0``."""
    return "-".join(f"{key}{value}" for key, value in place.model_dump(exclude_none=True).items())

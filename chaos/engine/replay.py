"""Repeats a recorded run: the same experiment and seed, and so the same faults at the same instants."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from chaos import __version__
from chaos.engine import documents
from chaos.engine import plan as plans
from chaos.engine.catalogue import injectors
from chaos.engine.errors import InputError
from chaos.engine.folder import RunFolder
from chaos.engine.plan import Plan
from chaos.experiment import Experiment


@dataclass(frozen=True)
class Recorded:
    """What a run's journal says of its plan.

    Attributes:
        source: the text of the document that ran.
        faults: as they were drawn, as JSON, without their ids.
        version: of the program that drew them.
    """

    run: str
    experiment: Experiment
    seed: int
    source: str
    faults: list[dict[str, Any]]
    version: str


def read(folder: RunFolder) -> Recorded:
    """The plan of a recorded run.

    Raises:
        InputError: its journal holds none, or one that this version cannot read.
    """
    run, version, plan = folder.path.name, "an unknown version", None
    for event in folder.read_journal():
        if event.get("e") == "journal":
            version = f"version {event.get('version')}"
        elif event.get("e") == "plan":
            plan = event
            break
    if plan is None:
        raise InputError(f"the journal of {run} holds no plan, it was cut short: repeat another run")
    try:
        experiment = Experiment.model_validate(plan["experiment"])
        faults = [_without_id(fault) for fault in plan["faults"]]
        seed, source = int(plan["seed"]), str(plan["source"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        told = f"{error.error_count()} of its values do not fit" if isinstance(error, ValidationError) else repr(error)
        raise InputError(
            f"the plan of {run}, written by {version}, cannot be read by version {__version__} ({told}): "
            "replay it with the version that wrote it"
        ) from error
    return Recorded(run, experiment, seed, source, faults, version)


def draw(recorded: Recorded, now: datetime) -> Plan:
    """Draw the recorded run's plan again.

    Raises:
        InputError: a limit forbids it now, or what is drawn is not what was recorded.
    """
    for fault in recorded.experiment.faults:
        if fault.inject not in injectors():
            raise InputError(f"{recorded.run} needs the injector {fault.inject}, which is not installed: install it")
    plan = plans.draw(recorded.experiment, now, recorded.seed, documents.site_of(recorded.experiment))
    drawn = [_without_id(fault.as_json()) for fault in plan.faults]
    if drawn != recorded.faults:
        raise InputError(
            f"{recorded.run} was drawn by {recorded.version}; version {__version__} draws other faults from its seed "
            f"({_difference(recorded.faults, drawn)}): replay it with the version that wrote it"
        )
    return plan


def _without_id(fault: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fault.items() if key != "id"}


def _difference(recorded: list[dict[str, Any]], drawn: list[dict[str, Any]]) -> str:
    """The first thing that is not the same."""
    for before, now in zip(recorded, drawn, strict=False):
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                return f"{key} of {before.get('name')}: {before.get(key)} was recorded, {now.get(key)} is drawn"
    return f"{len(recorded)} faults were recorded, {len(drawn)} are drawn"

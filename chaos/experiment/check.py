"""Makes an experiment of a document's plain values, and finds everything that is wrong with them.

Three passes, so that one mistake never hides another: the parameters and tolerances against the catalogue, the shape
of the whole against the model, and what only several places together can tell. Each works on what it can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from chaos import quantities
from chaos.documents.errors import Finding, suggestion
from chaos.documents.translate import findings
from chaos.experiment import targets
from chaos.experiment.base import attempt
from chaos.experiment.catalogue import Catalogue, DependsOnDuration, DependsOnTarget, InjectorInfo, params_model
from chaos.experiment.fields import DOCUMENT
from chaos.experiment.model import Experiment, Hold, LabSpec, StopIf
from chaos.experiment.named import Resolver, numbered, unknown
from chaos.experiment.together import lab_or_cluster, together
from chaos.experiment.tolerances import KEYS, read_tolerance

Path = tuple[str | int, ...]


def check(
    data: Mapping[str, Any], catalogue: Catalogue, clusters: Resolver | None = None
) -> tuple[Experiment | None, list[Finding]]:
    """The experiment (None where something is wrong), and all findings in no particular order.

    Args:
        clusters: finds the nodes of a cluster that is no lab; without it such a document is checked as far as it goes.
    """
    checker = _Checker(catalogue)
    checker.found += lab_or_cluster(data)
    numbers = checker.numbered(data, clusters)
    read = checker.catalogued(numbers)
    experiment: Experiment | None = None
    try:
        experiment = Experiment.model_validate(read, context=DOCUMENT, by_alias=True, by_name=False)
    except ValidationError as error:
        checker.found += findings(error, Experiment)
    found = [*checker.found, *together(numbers, read, catalogue)]
    return (None if found else experiment), found


class _Checker:
    """The first pass: what the catalogue knows."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.found: list[Finding] = []

    def numbered(self, data: Mapping[str, Any], clusters: Resolver | None) -> Mapping[str, Any]:
        """The document with its nodes by number."""
        cluster = data.get("cluster")
        if clusters is None or not isinstance(cluster, str) or cluster in ("", "lab"):
            return data
        workload = data.get("workload")
        try:
            nodes = clusters(cluster, workload if isinstance(workload, dict) else {})
        except ValueError as error:
            self._find(("cluster",), str(error))
            return unknown(data)
        numbers, found = numbered(data, nodes)
        self.found += found
        return numbers

    def catalogued(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of the document whose parameters and tolerances are in SI, shaped as the model is."""
        read = dict(data)
        faults = data.get("faults")
        if isinstance(faults, list):
            lab = attempt(LabSpec, data.get("lab"))
            read["faults"] = [self._fault(("faults", i), fault, lab) for i, fault in enumerate(faults)]
            self._name(read["faults"])
        if isinstance(steady := data.get("steady_state"), dict) and isinstance(holds := steady.get("hold"), list):
            read["steady_state"] = steady | {
                "hold": [self._condition(("steady_state", "hold", i), hold, Hold) for i, hold in enumerate(holds)]
            }
        if isinstance(guards := data.get("guards"), dict) and "stop_if" in guards:
            written = guards["stop_if"]
            stops = [written] if isinstance(written, dict) else written
            if isinstance(stops, list):
                read["guards"] = guards | {
                    "stop_if": [self._condition(("guards", "stop_if", i), s, StopIf) for i, s in enumerate(stops)]
                }
        return read

    def _fault(self, path: Path, written: object, lab: LabSpec | None) -> object:
        if not isinstance(written, dict):
            return written
        read = dict(written)
        kind = written.get("inject")
        info = self.catalogue.injectors.get(kind) if isinstance(kind, str) else None
        if info is None:
            if isinstance(kind, str):
                near = suggestion(kind, self.catalogue.injectors)
                self._find((*path, "inject"), f"found {kind!r}, which is no injector; {near}")
            if isinstance(written.get("with"), dict):
                read["with"] = {}
            return read
        parameters = written.get("with", {})
        made: object = None
        if isinstance(parameters, dict):
            where = (*path, "with") if "with" in written else path
            read["with"], made = self._parameters(where, parameters, info.params)
        self._duration(path, written, info, made)
        self._danger(path, written, info)
        wrong = targets.check(path, written, info, lab)
        on = written.get("on")
        if not wrong and isinstance(on, dict) and isinstance(made, DependsOnTarget):
            problem = made.target_problem(on)
            wrong = [] if problem is None else [Finding((*path, "with") if "with" in written else path, problem)]
        self.found += wrong
        return read

    def _duration(self, path: Path, written: Mapping[str, Any], info: InjectorInfo, parameters: object) -> None:
        if info.duration == "required" and written.get("for") is None:
            where = (*path, "for") if "for" in written else path
            self._find(where, f"found no 'for'; {info.kind} needs one: how long it lasts, such as 500ms")
        if info.duration == "none" and "for" in written:
            self._find((*path, "for"), f"found 'for', but {info.kind} happens at an instant; leave it out", at_key=True)
        if info.duration == "optional" and isinstance(parameters, DependsOnDuration):
            try:
                seconds = quantities.parse("duration", written["for"]) if "for" in written else None
            except quantities.QuantityError:
                return  # the model tells
            if problem := parameters.problem(seconds):
                self._find((*path, "for") if "for" in written else path, problem, at_key=True)

    def _danger(self, path: Path, written: Mapping[str, Any], info: InjectorInfo) -> None:
        if info.danger is not None and "danger" not in written:
            self._find(path, f"found no 'danger'; {info.kind} is dangerous ({info.danger}); write danger: accepted")
        if info.danger is None and "danger" in written:
            self._find((*path, "danger"), f"found 'danger', but {info.kind} has none; leave it out", at_key=True)

    def _parameters(self, path: Path, written: dict[str, Any], params: type) -> tuple[dict[str, Any], object]:
        """Parameters in SI, by the names of the dataclass's fields, and the dataclass made of them.

        Empty and None where something is wrong.
        """
        model = params_model(params)
        try:
            read = model.model_validate(written, context=DOCUMENT)
        except ValidationError as error:
            self.found += findings(error, model, path)
            return {}, None
        values = {name: getattr(read, name) for name in model.model_fields}
        try:
            made = params(**values)
        except ValueError as error:  # what the dataclass itself refuses, such as a range the wrong way round
            self._find(path, str(error))
            return {}, None
        return values, made

    def _name(self, faults: list[Any]) -> None:
        """Gives nameless faults a name, and finds names given twice."""
        given: dict[str, int] = {}
        for i, fault in enumerate(faults):
            name = fault.get("name") if isinstance(fault, dict) else None
            if isinstance(name, str) and name in given:
                self._find(("faults", i, "name"), f"found '{name}', which names fault {given[name] + 1}; write another")
            elif isinstance(name, str):
                given[name] = i
        for i, fault in enumerate(faults):
            if isinstance(fault, dict) and "name" not in fault:
                kind = fault.get("inject")
                stem = kind if kind in self.catalogue.injectors else "fault"
                fault["name"] = next(n for c in range(1, len(faults) + 2) if (n := f"{stem}-{c}") not in given)
                given[fault["name"]] = i

    def _condition(self, path: Path, written: object, model: type[Hold | StopIf]) -> object:
        """A flat condition of the document as the model's: tolerance and parameters apart, both in SI."""
        if not isinstance(written, dict):
            return written
        own = {item.alias or name for name, item in model.model_fields.items()} - {"params", "tolerance"}
        read = {key: value for key, value in written.items() if key in own}
        tolerance = {key: value for key, value in written.items() if key in KEYS}
        rest = {key: value for key, value in written.items() if key not in own and key not in KEYS}
        name = written.get("probe")
        info = self.catalogue.probes.get(name) if isinstance(name, str) else None
        read["tolerance"] = {}
        if info is None:
            if isinstance(name, str):
                near = suggestion(name, self.catalogue.probes)
                self._find((*path, "probe"), f"found {name!r}, which is no probe; {near}")
            return read
        model_of_rest = params_model(info.params)
        known = {*own, *KEYS, *(item.alias or key for key, item in model_of_rest.model_fields.items())}
        for key in [key for key in rest if key not in known]:
            self._find((*path, key), f"unknown key '{key}'; {suggestion(key, known)}", at_key=True)
            del rest[key]
        read["params"], _ = self._parameters(path, rest, info.params)
        read["tolerance"], wrong = read_tolerance(tolerance, info, written.get("of"))
        self.found += [Finding((*path, *one.path), one.message, one.at_key) for one in wrong]
        return read

    def _find(self, path: Path, message: str, *, at_key: bool = False) -> None:
        self.found.append(Finding(path, message, at_key))

"""What no place of a document alone can tell: the lab, the blast radius, the baseline and the course of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chaos import quantities
from chaos.documents.errors import Finding, describe
from chaos.experiment import radius
from chaos.experiment.base import attempt
from chaos.experiment.catalogue import Catalogue
from chaos.experiment.model import Experiment, Score, SteadyState, Workload

BASELINE: float = SteadyState.model_fields["baseline"].default
SHORTEST_BASELINE = 1.0  # seconds; a share of less is a share of noise


def together(data: Mapping[str, Any], read: Mapping[str, Any], catalogue: Catalogue) -> list[Finding]:
    """What is wrong between the parts. ``data`` is the document as written, ``read`` the same with parameters in SI."""
    raw = data.get("faults")
    faults = [fault for fault in raw if isinstance(fault, dict)] if isinstance(raw, list) else []
    steady = data.get("steady_state", {})
    steady = steady if isinstance(steady, dict) else {}
    return [
        *radius.check(read, catalogue),
        *_launcher(data),
        *_baseline(faults, steady),
        *_course(data, faults, steady),
        *_patience(data, faults),
    ]


def lab_or_cluster(data: Mapping[str, Any]) -> Iterator[Finding]:
    """A lab has a size, and what is no lab has none in the document."""
    cluster, lab = data.get("cluster", "lab"), data.get("lab")
    if cluster == "lab" and lab is None:
        yield Finding((), "found no 'lab'; write its size, such as lab: {nodes: 2, gpus: 2}")
    if isinstance(cluster, str) and cluster != "lab" and lab is not None:
        yield Finding(("lab",), f"found 'lab' beside cluster {cluster!r}; leave one of them out", at_key=True)


def _launcher(data: Mapping[str, Any]) -> Iterator[Finding]:
    """A fault is aimed at the launcher only of a job that has one."""
    workload, faults = attempt(Workload, data.get("workload")), data.get("faults")
    if workload is None or workload.without_launcher is None or not isinstance(faults, list):
        return
    for i, fault in enumerate(faults):
        on = fault.get("on") if isinstance(fault, dict) else None
        if isinstance(on, dict) and on.get("process") == "launcher":
            yield Finding(
                ("faults", i, "on", "process"),
                f"found 'launcher', but {workload.without_launcher}; aim at a rank",
            )


def _baseline(faults: list[dict[str, Any]], steady: Mapping[str, Any]) -> Iterator[Finding]:
    baseline, holds = _seconds(steady, "baseline", BASELINE), steady.get("hold")
    if baseline is None or baseline >= SHORTEST_BASELINE:
        return
    relative = isinstance(holds, list) and any(isinstance(hold, dict) and hold.get("of") for hold in holds)
    if faults or relative:
        user = "a fault's recovery" if faults else "'of: baseline'"
        yield Finding(
            ("steady_state", "baseline"),
            f"found {describe(steady['baseline'])}, too short to measure {user} against; "
            f"write {_shown(SHORTEST_BASELINE)} or more",
        )


def _course(data: Mapping[str, Any], faults: list[dict[str, Any]], steady: Mapping[str, Any]) -> Iterator[Finding]:
    """The baseline, the faults and the settling must fit into ``at_most``, or the run could never end well."""
    bound, settle = _seconds(data, "at_most"), _seconds(data, "settle")
    baseline = _seconds(steady, "baseline", BASELINE)
    if baseline is None or bound is None or settle is None:
        return
    last = max((end for fault in faults if (end := _end(fault)) is not None), default=0.0)
    least = baseline + last + settle
    if least > bound:
        yield Finding(
            ("at_most",),
            f"found at_most {_shown(bound)}, but baseline, faults and settle alone take {_shown(least)}; "
            "write more than that",
        )


def _end(fault: Mapping[str, Any]) -> float | None:
    """When a fault's last occurrence is over at the latest (s from the gate); None where that cannot be read."""
    parts = [_seconds(fault, key, 0.0) for key in ("after", "jitter", "for", "every")]
    times = fault.get("times", 1)
    if None in parts or not isinstance(times, int) or isinstance(times, bool):
        return None
    *once, every = [part for part in parts if part is not None]
    return sum(once) + every * (times - 1)


def _patience(data: Mapping[str, Any], faults: list[dict[str, Any]]) -> Iterator[Finding]:
    """Waiting less than the pass mark would end a run before it could be judged."""
    score = attempt(Score, data.get("score", {}))
    patience = _seconds(data, "recover_within")
    if faults and score is not None and patience is not None and patience < score.rto:
        yield Finding(
            ("recover_within",) if "recover_within" in data else ("score", "rto"),
            f"found a score.rto of {_shown(score.rto)} with a recover_within of {_shown(patience)}; "
            "wait at least as long as the pass mark",
        )


def _seconds(written: Mapping[str, Any], key: str, default: float | None = None) -> float | None:
    """A duration of the document in seconds; None where it cannot be read."""
    value = written.get(key)
    if value is None:
        return Experiment.model_fields[key].default if default is None else default
    try:
        return quantities.parse("duration", value)
    except quantities.QuantityError:
        return None


def _shown(seconds: float) -> str:
    return quantities.format("duration", round(seconds, 9))

"""Probes of the training job, from the step events that its members report.

A step of the job is done when every rank of its generation has reported it, at the instant of the last report.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos import quantities
from steady_state.contract import Measurement, ProbeFailed, Seconds, ValueType
from steady_state.view import StepEvent, WorkloadView


@dataclass(frozen=True)
class NoParams:
    """Nothing to say."""


class Throughput:
    """Steps of the whole job a second; with fewer ranks than it began with, a step weighs their share."""

    name = "workload.throughput"
    about = (
        "steps of the whole job a second, over the last seconds; one of fewer ranks than at first weighs their share"
    )
    value: ValueType = "number"
    Params = NoParams

    def measure(self, _params: NoParams, view: WorkloadView, _timeout: float, /) -> Measurement:
        """0.0 for a job that does not step."""
        done = completions(view.steps())
        share = share_of_ranks(view.steps(), view.world)
        rate = steps_per_second(done, view.now_ns - view.window_ns, view.now_ns) * share
        return Measurement(
            rate,
            f"{rate:.4g} steps/s" + (f" (of {share:.0%} of the ranks)" if share < 1 else ""),
            {"steps": len(done), "window_s": view.window_ns / 1e9, "ranks": share},
        )


class Loss:
    """The mean of the members' latest losses."""

    name = "workload.loss"
    about = "mean of the latest loss of every member; not finite if any of them is not"
    value: ValueType = "number"
    Params = NoParams

    def measure(self, _params: NoParams, view: WorkloadView, _timeout: float, /) -> Measurement:
        """Fails while a member has not reported a step yet."""
        losses: dict[int, float] = {}
        for member in view.members():
            if member.last is None or member.last.get("loss") is None:
                raise ProbeFailed(f"rank {member.rank} has reported no loss yet")
            losses[member.rank] = float(member.last["loss"])  # "nan" and "inf" are written as text
        if not losses:
            raise ProbeFailed("the job has no member")
        mean = sum(losses.values()) / len(losses)
        return Measurement(mean, f"loss {mean:.6g} over {len(losses)} members", {"members": len(losses)})


class ReplicasAgree:
    """The share of replica hashes that agree."""

    name = "workload.replicas_agree"
    about = "share of the replicas' parameter hashes that agree across the ranks at the same step"
    value: ValueType = "ratio"
    Params = NoParams

    def measure(self, _params: NoParams, view: WorkloadView, _timeout: float, /) -> Measurement:
        """Of the hashes of one step, those that equal the most frequent one agree. Fails if nothing was compared."""
        hashes: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
        for event in view.steps():
            if event.get("hash") is not None:
                hashes[event["gen"], event["step"]][event["rank"]] = event["hash"]
        compared = agreed = 0
        disagreements = []
        for (gen, step), by_rank in sorted(hashes.items()):
            if len(by_rank) < 2:
                continue
            ((_, most),) = Counter(by_rank.values()).most_common(1)
            compared += len(by_rank)
            agreed += most
            if most < len(by_rank):
                disagreements.append({"gen": gen, "step": step, "hashes": dict(sorted(by_rank.items()))})
        if not compared:
            raise ProbeFailed(f"nothing compared: no step of the last {_window(view)} has hashes of two ranks")
        evidence: dict[str, Any] = {"compared": compared, "disagreed": compared - agreed}
        if disagreements:
            evidence |= {"first_disagreement": disagreements[0]}
        return Measurement(agreed / compared, f"{agreed} of {compared} replica hashes agree", evidence)


@dataclass(frozen=True)
class AliveParams:
    """How recent a step must be."""

    within: Seconds = field(default=2.0, metadata={"help": "how recent the latest step of every member must be"})


class Alive:
    """Whether every member steps."""

    name = "workload.alive"
    about = "whether every current member finished a step just now"
    value: ValueType = "boolean"
    Params = AliveParams

    def measure(self, params: AliveParams, view: WorkloadView, _timeout: float, /) -> Measurement:
        """False for a job without members."""
        members = view.members()
        oldest_ns = view.now_ns - int(params.within * 1e9)
        silent = [member.rank for member in members if member.last is None or member.last["t"] < oldest_ns]
        within = quantities.format("duration", params.within)
        if not members:
            return Measurement(False, "the job has no member", {"members": 0, "silent": []})
        told = f"no step within {within} from rank {', '.join(map(str, silent))}" if silent else "every rank steps"
        return Measurement(not silent, told, {"members": len(members), "silent": silent})


def completions(steps: Sequence[StepEvent]) -> list[int]:
    """The instants (ns, ascending) at which steps of the whole job were done.

    A step counts once every rank of its world has reported it; the last report is its instant. A step of which the
    window holds a part only does not count.
    """
    reported: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    world: dict[tuple[int, int], int] = {}
    for event in steps:
        key = event["gen"], event["step"]
        reported[key][event["rank"]] = event["t"]
        world[key] = event["world"]
    return sorted(max(by_rank.values()) for key, by_rank in reported.items() if len(by_rank) >= world[key])


def share_of_ranks(steps: Sequence[StepEvent], world: int) -> float:
    """How many of the job's first ranks its steps had, on the average; 1.0 where that cannot be told."""
    worlds = {(event["gen"], event["step"]): event["world"] for event in steps}
    return min(1.0, sum(worlds.values()) / len(worlds) / world) if worlds and world else 1.0


def steps_per_second(done: Sequence[int], start_ns: int, end_ns: int) -> float:
    """The rate over a window from the instants at which steps were done (ns, ascending).

    Counting alone errs by one step in the window: 10 % at ten steps. So the rate is taken between the first and the
    last step, and the time before and after them counts where it is longer than a step takes: a job that stands still
    at either end of the window is slow, one whose next step is merely not due yet is not.
    """
    if len(done) < 2:
        return len(done) / ((end_ns - start_ns) / 1e9)
    inside = done[-1] - done[0]
    step = inside / (len(done) - 1)
    still = max(0.0, done[0] - start_ns - step) + max(0.0, end_ns - done[-1] - step)
    return (len(done) - 1) * 1e9 / (inside + still) if inside + still > 0 else 0.0


def _window(view: WorkloadView) -> str:
    return quantities.format("duration", view.window_ns / 1e9)

"""Runs that never happened: step events and journals with a known truth planted in them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

Event = dict[str, Any]

MS = 1_000_000
S = 1_000_000_000
PACE = 20 * MS
BEGAN = 1000 * S  # the run's first instant
BASELINE = (BEGAN + 1 * S, BEGAN + 6 * S)
EFFECT = BEGAN + 8 * S + 7 * MS  # a fault's instant of effect, 7 ms into a step
STOPPED = BEGAN + 20 * S
SKEW = 30_000  # ns between the reports of two ranks of one step


# -- when the job's steps end ----------------------------------------------------------------------------------------


def ends(
    until: int = STOPPED, *, since: int = BEGAN, pace: int = PACE, jitter: float = 0.0, seed: int = 1
) -> list[int]:
    """The ends of an undisturbed job's steps; `jitter` is the largest deviation of a step, a share of the pace."""
    chance = random.Random(seed)
    found, t = [], since
    while (t := t + round(pace * (1 + chance.uniform(-jitter, jitter)))) <= until:
        found.append(t)
    return found


def stalled(found: Iterable[int], at: int, length: int) -> list[int]:
    """The step in flight at `at` and all later ones end `length` later."""
    return [t + length if t > at else t for t in found]


def slowed(found: Iterable[int], at: int, factor: float, until: int = 1 << 62) -> list[int]:
    """From `at` to `until` everything takes `factor` times as long."""
    return [t if t <= at else at + round((min(t, until) - at) * factor) + max(0, t - until) for t in found]


# -- step events -----------------------------------------------------------------------------------------------------


def digest(step: int, salt: str = "") -> str:
    """The hash of the parameters after a step."""
    return f"{random.Random(f'{step}{salt}').getrandbits(64):016x}"


def incarnation(rank: int, life: int = 1) -> str:
    """The name of a process."""
    return f"4026532{rank:03d}-{rank + 2}-{life}"


def members(t: int, incs: Sequence[str], *, gen: int = 1) -> list[Event]:
    """All processes join a generation, rank by rank."""
    world = len(incs)
    return [{"e": "member", "t": t, "inc": inc, "rank": k, "gen": gen, "world": world} for k, inc in enumerate(incs)]


def steps(
    at: Iterable[int], incs: Sequence[str], *, gen: int = 1, first: int = 1, hashes: bool = True, salt: str = ""
) -> list[Event]:
    """Every rank reports each step that ends at these instants, one shortly after the other."""
    return [
        {
            "e": "step",
            "t": t + rank * SKEW,
            "inc": inc,
            "rank": rank,
            "gen": gen,
            "world": len(incs),
            "step": step,
            "tokens": 512,
            "loss": 2.5,
            "gnorm": 1.0,
            "work_ns": 9 * MS,
            **({"hash": digest(step, salt)} if hashes else {}),
        }
        for step, t in enumerate(at, start=first)
        for rank, inc in enumerate(incs)
    ]


def job(at: Iterable[int] | None = None, *, world: int = 4, **more: Any) -> list[Event]:
    """A job of one generation with steps at these instants (undisturbed if not given)."""
    incs = [incarnation(rank) for rank in range(world)]
    return [*members(BEGAN, incs), *steps(ends() if at is None else at, incs, **more)]


def regrouped(
    at: Sequence[int], *, lost: int, since: int, back_to: int | None = None, spare: bool = True, world: int = 4
) -> list[Event]:
    """A job that loses a rank at `since` and goes on in a second generation, with a spare or without.

    Args:
        at: ends of steps, the second generation's being those after `since`.
        back_to: the step after which the second generation begins, if it returns to a checkpoint.
    """
    old = [incarnation(rank) for rank in range(world)]
    new = [inc if rank != lost else incarnation(rank, 2) for rank, inc in enumerate(old) if spare or rank != lost]
    before, after = [t for t in at if t <= since], [t for t in at if t > since]
    first = (len(before) if back_to is None else back_to) + 1
    joined = after[0] - PACE // 2
    return [
        *members(BEGAN, old),
        *steps(before, old),
        {"e": "mark", "t": joined - 4 * MS, "inc": new[0], "what": "symptom", "gen": 1},
        {"e": "mark", "t": joined - 3 * MS, "inc": new[0], "what": "detected", "gen": 1},
        {"e": "mark", "t": joined - 2 * MS, "inc": new[0], "what": "aborted", "gen": 1},
        *members(joined, new, gen=2),
        {"e": "mark", "t": joined + 1, "inc": new[0], "what": "group", "gen": 2},
        *steps(after, new, gen=2, first=first),
    ]


def regrown(at: Sequence[int], *, lost: int, since: int, again: int, back_to: int | None = None) -> list[Event]:
    """A job of four that loses a rank at `since`, goes on with three, and is four again from `again` on.

    Args:
        back_to: the step after which the third generation begins, if it returns to a checkpoint.
    """
    smaller = regrouped([t for t in at if t <= again], lost=lost, since=since, spare=False)
    after = [t for t in at if t > again]
    whole = [incarnation(rank, 2 if rank == lost else 1) for rank in range(4)]
    first = (len(at) - len(after) if back_to is None else back_to) + 1
    return [*smaller, *members(after[0] - PACE // 2, whole, gen=3), *steps(after, whole, gen=3, first=first)]


# -- the journal -----------------------------------------------------------------------------------------------------


def planned(key: str = "f1", name: str = "blackhole", **more: Any) -> Event:
    """A fault as the plan lists it."""
    return {
        "id": key,
        "name": name,
        "kind": "fabric.blackhole",
        "target": {"node": 0, "gpu": None, "rank": None},
        "params": {"from": "gpu0", "to": "gpu1"},
        "after_s": 2.0,
        "for_s": 0.5,
        "drawn": True,
        "reality": "emulated",
        **more,
    }


def happened(
    key: str = "f1",
    *,
    at: int = EFFECT,
    length: int = 500 * MS,
    effective: bool | None = True,
    gone: bool | None = True,
    residue: Sequence[str] = (),
    undone: bool = True,
) -> list[Event]:
    """What a node says of one fault."""
    end = at + length

    def said(t: int, what: str, **more: Any) -> Event:
        return {"e": "fault", "t": t, "id": key, "what": what, **more}

    def witness(t: int, phase: str, seen: bool | None) -> Event:
        return said(t, "witness", phase=phase, effective=seen, text=f"{phase}: {seen}", numbers={"dropped": 12})

    told = [
        said(at - 500 * MS, "armed", record={"fault": key}),
        witness(at - 400 * MS, "before", False),
        said(at, "fired", scheduled_ns=at - 400_000, effect_ns=at),
        witness(at + 30 * MS, "during", effective),
        said(end, "ended", scheduled_ns=end - 300_000, ended_ns=end),
        witness(end + 5 * MS, "after", None if gone is None else not gone),
    ]
    return [*told, said(end + 6 * MS, "undone", residue=list(residue))] if undone else told


def probe(when: str, t: int, *, ok: bool = True, **more: Any) -> Event:
    """The result of one hypothesis."""
    return {
        "e": "probe",
        "t": t,
        "when": when,
        "probe": "workload.throughput",
        "tolerance": "at least 95% of baseline",
        "ok": ok,
        "value": 49.9 if ok else 12.0,
        "text": "49.9 steps/s" if ok else "12.0 steps/s",
        "error": None,
        "ms": 0.4,
        **more,
    }


def journal(
    faults: Sequence[Event] = (),
    told: Iterable[Event] = (),
    *,
    score: dict[str, Any] | None = None,
    workload: dict[str, Any] | None = None,
    hold: Sequence[dict[str, Any]] = ({"probe": "workload.throughput", "when": ["before", "after"]},),
    before: bool = True,
    after: bool | None = True,
    reason: str | None = "completed",
    stopped: int = STOPPED,
    extra: Iterable[Event] = (),
) -> list[Event]:
    """A run's journal, in order of time.

    Args:
        faults: as the plan lists them; `told` what their nodes said.
        before, after: whether the hypothesis held; `after` may be None for "never checked".
        reason: why the run ended; None for a journal that is cut.
    """
    experiment = {
        "name": "made-up",
        "about": "A run that never happened.",
        "workload": {"reference": "llama-bytes", "recovery": "checkpoint", "step": 0.02, **(workload or {})},
        "steady_state": {"baseline": 5.0, "hold": [dict(each) for each in hold]},
        "faults": [dict(each) for each in faults],
        "score": {"rto": 0.8, "recovered_at": 0.95, "consistency": 0.9999, "hold": 2.0, **(score or {})},
    }
    events = [
        {"e": "clock", "t": BEGAN + 2, "uncertainty_ns": 20_000},
        {"e": "phase", "t": BEGAN + 3, "phase": "workload"},
        {"e": "baseline", "t": BASELINE[1], "from_ns": BASELINE[0], "to_ns": BASELINE[1]},
        probe("before", BASELINE[1] + MS, ok=before),
        {"e": "phase", "t": BASELINE[1] + 2 * MS, "phase": "faults"},
        *told,
        *([] if after is None else [probe("after", stopped - MS, ok=after)]),
        {"e": "phase", "t": stopped, "phase": "stop"},
        *extra,
    ]
    head = {
        "e": "journal",
        "t": BEGAN,
        "schema": "chaos.journal/1",
        "run": "20261130-120000-made-up-0001",
        "wall": "2026-11-30T12:00:00.000+00:00",
        "boot": "b",
        "version": "0.1.0",
    }
    plan = {
        "e": "plan",
        "t": BEGAN + 1,
        "experiment": experiment,
        "seed": 7,
        "source": "experiment: made-up\n",
        "faults": [dict(each) for each in faults],
    }
    end = {"e": "end", "t": stopped + MS, "reason": reason, "wall": "2026-11-30T12:00:20.000+00:00"}
    return [head, plan, *sorted(events, key=lambda event: event["t"]), *([end] if reason is not None else [])]

"""Shows what a run would do: every fault with its drawn instant, how it is made and undone, and every limit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from chaos import quantities
from chaos.engine.catalogue import injectors
from chaos.report import words

if TYPE_CHECKING:
    from chaos.engine.limits import Limit
    from chaos.engine.plan import Plan, PlannedFault
    from chaos.engine.rehearsal import Conclusion, Rehearsed

SCHEMA = "chaos.plan/1"
REALITY = "known once its node has been probed"
CONCLUSIONS: dict[Conclusion, str] = {
    "ready": "Every fault can be made: each was armed, disarmed and proven undone. None was fired.",
    "not possible": "Not every fault can be made. None was fired, and nothing is left.",
    "interrupted": "The rehearsal was interrupted. None was fired, and nothing is left.",
    "broken off": "The rehearsal broke off. None was fired, and nothing is left.",
    "open": "Something may be left: chaos sweep --all tells, and clears it.",
}
_REVERSAL = {
    "exact": "exact: the former state is brought back",
    "self": "by itself: it ends without being undone",
    "none": "none: it cannot be undone",
}


def as_json(plan: Plan, limits: list[Limit], **more: Any) -> str:
    """The plan for machines: one JSON document, schema ``chaos.plan/1``, with ``more``; durations in seconds."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "experiment": plan.experiment.name,
            "about": plan.experiment.about,
            "seed": plan.seed,
            "lab": plan.lab.as_dict(),
            "nodes": list(plan.site.names) if plan.site is not None else None,
            "faults": [_fault(fault) for fault in plan.faults],
            "limits": [
                {"guard": each.guard, "reached": each.reached, "allowed": each.allowed, "problem": each.problem}
                for each in limits
            ],
            "stop_if": [_condition(each.model_dump(mode="json")) for each in plan.experiment.guards.stop_if],
            **more,
        },
        indent=2,
        ensure_ascii=False,
    )


def _fault(fault: PlannedFault) -> dict[str, Any]:
    made_by = injectors()[fault.spec.inject]
    planned = {key: value for key, value in fault.as_json().items() if key != "id"}  # a run gives it another
    return planned | {
        "probability": fault.spec.probability,
        "reality": None,
        "reversal": made_by.reversal,
        "mechanism": made_by.mechanism,
        "undo": made_by.undoing,
        "residue_check": made_by.proof,
    }


def show(console: Console, plan: Plan, limits: list[Limit]) -> None:
    """The plan for people."""
    lab, workload = plan.lab, plan.experiment.workload
    spare = f", {lab.spare_nodes} spare" if lab.spare_nodes else ""
    console.print(Text.assemble((plan.experiment.name, "bold"), f"  {plan.experiment.about}"))
    console.print(f"  lab        {lab.nodes} nodes of {lab.gpus} GPUs{spare}; recovery {workload.recovery}")
    console.print(f"  seed       {plan.seed} (--seed {plan.seed} draws this plan again)")
    _show_faults(console, plan)
    for kind in dict.fromkeys(fault.spec.inject for fault in plan.drawn):
        _show_kind(console, kind)
    table = Table(title="Limits", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in ("  guard", "the plan reaches", "allowed", ""):
        table.add_column(column)
    for limit in limits:
        mark = Text("OVER", "bold red") if limit.problem else Text("" if limit.allowed is None else "within", "green")
        table.add_row(f"  {limit.guard}", limit.reached, limit.allowed or "no limit", mark)
    for each in plan.experiment.guards.stop_if:
        table.add_row("  stop_if", "watched while it runs", _condition(each.model_dump(mode="json")))
    console.print()
    console.print(table)


def show_rehearsal(console: Console, rehearsed: Rehearsed) -> None:
    """What came of a rehearsal."""
    table = Table(title="Rehearsal", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in ("  fault", "reality", "armed", "before", "undone"):
        table.add_column(column)
    for fault in rehearsed.faults:
        armed = "no" if fault.armed_ms is None else f"in {fault.armed_ms:.0f} ms"
        proof = Text("nothing is left", "green") if fault.undone else Text("no", "bold red")
        table.add_row(f"  {fault.name}", fault.reality or "not told", armed, fault.before or "not measured", proof)
    console.print()
    console.print(table)
    for fault in rehearsed.faults:
        if fault.problem is not None:
            console.print(f"  {fault.name}: {fault.problem}", markup=False)
    for problem in rehearsed.problems:
        console.print(f"  {problem}", markup=False)
    console.print(f"\n{CONCLUSIONS[rehearsed.conclusion]}")


def _show_faults(console: Console, plan: Plan) -> None:
    console.print()
    if not plan.drawn:
        console.print(Text("No fault happens.", "bold"))
    else:
        table = Table(title="Faults", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
        for column in ("  after the gate", "for", "fault", "on", "what"):
            table.add_column(column)
        for fault in sorted(plan.drawn, key=lambda each: each.spec.after):
            spec = fault.spec
            lasts = "at an instant" if spec.for_ is None else _seconds(spec.for_)
            what = f"{spec.inject} {words.params(spec.with_)}".strip()
            table.add_row(f"  {_seconds(spec.after)}", lasts, spec.name, _on(fault), what)
        console.print(table)
    for fault in plan.faults:
        if not fault.drawn:
            probability = quantities.format("ratio", fault.spec.probability)
            console.print(f"  not drawn: {fault.spec.name}, on {_on(fault)} (probability {probability})")


def _show_kind(console: Console, kind: str) -> None:
    made_by = injectors()[kind]
    table = Table(
        title=kind, title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 2, 0, 0)
    )
    table.add_row("  made", made_by.mechanism)
    table.add_row("  undone", made_by.undoing)
    table.add_row("  proven", made_by.proof)
    table.add_row("  reversal", _REVERSAL[made_by.reversal])
    table.add_row("  reality", REALITY)
    console.print()
    console.print(table)


def _on(fault: PlannedFault) -> str:
    return words.target(fault.spec.on.model_dump(exclude_none=True))


def _seconds(value: float) -> str:
    return quantities.format("duration", round(value, 6))


def _condition(condition: dict[str, Any]) -> str:
    """A condition that ends the run: ``workload.alive is false, for 30s``."""
    tolerance = " ".join(f"{key} {words.plain(value)}" for key, value in condition["tolerance"].items())
    lasting = f", for {_seconds(condition['for_'])}" if condition["for_"] else ""
    return f"{condition['probe']} {tolerance}{' of baseline' if condition['of'] else ''}{lasting}"

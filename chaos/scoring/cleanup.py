"""What is left of the faults: told apart from what the run was worth, and never guessed."""

from typing import Any

from chaos.scoring.record import FaultRecord, Record


def cleanup(record: Record) -> dict[str, Any]:
    """The state of the clean-up.

    Returns:
        `verdict` ("clean": everything that was begun is proven undone; "open"; "nothing made"), `text`, one sentence,
        and `open`, a list of `fault` (its name), `id` and `text` (what is left, or why there is no proof).
    """
    found = [{"fault": fault.name, "id": fault.id, "text": _why(fault)} for fault in record.faults if fault.open]
    if found:
        told = "; ".join(f"{each['fault']}: {each['text']}" for each in found)
        return {"verdict": "open", "text": f"not proven undone: {told}", "open": found}
    made = [fault for fault in record.faults if fault.armed or fault.effect is not None]
    if not made:
        return {"verdict": "nothing made", "text": "no fault was made, there is nothing to undo", "open": []}
    elsewhere = [f"{fault.name}: {fault.proven}" for fault in made if fault.proven is not None]
    count = "the fault is" if len(made) == 1 else f"all {len(made)} faults are"
    told = f"{count} proven undone, nothing is left"
    return {"verdict": "clean", "text": "; ".join([told, *elsewhere]), "open": []}


def _why(fault: FaultRecord) -> str:
    if fault.residue:
        return "; ".join(fault.residue)
    return fault.unproven or fault.error or "its node has sent no proof"

"""How a run is made again."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from chaos.report import reading
from chaos.scoring.fields import mapping, objects, text


def command(card: Mapping[str, Any], source: str | None = None) -> str:
    """The command that repeats a run, to be given the document that ran.

    ``source`` is the document's text: where the run departed from it by an option, the option is told.
    """
    parts = ["chaos", "run", shlex.quote(f"{_file(reading.name(card))}.yaml")]
    seed = card.get("seed")
    if isinstance(seed, int):
        parts += ["--seed", str(seed)]
    recovery = text(mapping(card, "workload"), "recovery")
    if source is not None:
        written = re.search(r"\brecovery:\s*[\"']?(\w+)", source)
        if recovery is not None and written is not None and written[1] != recovery:
            parts += ["--recovery", recovery]
        if re.search(r"^faults:", source, re.MULTILINE) and not objects(card, "faults"):
            parts.append("--no-faults")
    return " ".join(parts)


def _file(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-") or "experiment"

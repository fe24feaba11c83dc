"""What a run is worth: scores it from its folder alone, so that a scorecard can be rebuilt at any time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaos import scoring
from chaos.engine import folder as folders
from chaos.engine.errors import InputError
from chaos.engine.folder import RunFolder
from chaos.experiment import Score
from chaos.scoring import watch
from chaos.scoring.rto import Terms


def score(folder: RunFolder, *, write: bool = True) -> dict[str, Any]:
    """The scorecard of a run, written into its folder unless told otherwise.

    Raises:
        InputError: it was a rehearsal.
    """
    journal = folder.read_journal()
    if any(event.get("e") == "plan" and event.get("rehearsal") for event in journal):
        raise InputError(f"{folder.path.name} was a rehearsal: nothing was broken, so there is nothing to score")
    card = scoring.score(journal, folder.read_steps())
    if write:
        folders.write_json(folder.scorecard, card)
    return card


def recovered(marks: Score, steps: Sequence[dict[str, Any]], baseline: tuple[int, int], since: Sequence[int]) -> bool:
    """Whether the workload has recovered from what began at these instants (ns) and has held it."""
    return watch.recovered(steps, baseline, since, Terms(marks.recovered_at, marks.hold))

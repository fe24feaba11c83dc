"""Where runs are kept: ``runs/<id>/`` with journal, steps, logs and scorecards."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.engine.errors import InputError

DEFAULT = Path("runs")


@dataclass(frozen=True)
class RunFolder:
    """One run's folder."""

    path: Path

    @property
    def journal(self) -> Path:
        """Every decision, fault and witness."""
        return self.path / "journal.jsonl"

    @property
    def steps(self) -> Path:
        """The step events of all ranks, in order of time."""
        return self.path / "steps.jsonl"

    @property
    def logs(self) -> Path:
        """The output of each process."""
        return self.path / "logs"

    @property
    def work(self) -> Path:
        """What the workload writes while it runs: events, checkpoints. Removed when the run has ended."""
        return self.path / "work"

    @property
    def lab(self) -> Path:
        """The lab's folder: the keeper's socket and the nodes' state. Removed when the run has ended."""
        return self.path / "lab"

    @property
    def scorecard(self) -> Path:
        """The scorecard for machines."""
        return self.path / "scorecard.json"

    @property
    def rehearsal(self) -> Path:
        """What came of a rehearsal, which has no scorecard."""
        return self.path / "rehearsal.json"

    def read_journal(self) -> list[dict[str, Any]]:
        """The journal's events; a torn last line is left out."""
        return list(read_lines(self.journal))

    def read_steps(self) -> list[dict[str, Any]]:
        """The step events."""
        return list(read_lines(self.steps)) if self.steps.exists() else []


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines; a line that is none (torn by a crash) is left out."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def create(runs: Path, run: str) -> RunFolder:
    """Make a run's folder.

    Raises:
        InputError: the runs folder cannot be written.
    """
    folder = RunFolder(runs.absolute() / run)
    try:
        folder.path.mkdir(parents=True)
        folder.logs.mkdir()
        folder.work.mkdir()
        # mkdir succeeds on some read-only mounts where files do not.
        probe = folder.path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise InputError(
            f"the runs folder {runs} cannot be written ({error.strerror}): name another with --runs, or CHAOS_RUNS"
        ) from error
    return folder


def find(runs: Path, name: str) -> RunFolder:
    """A run by its folder's path, its id, the beginning of its id, or ``last``.

    Raises:
        InputError: there is none, or several.
    """
    direct = Path(name)
    if (direct / "journal.jsonl").is_file():
        return RunFolder(direct.absolute())
    known = everything(runs)
    if name == "last" and known:
        return known[-1]
    matching = [folder for folder in known if folder.path.name.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise InputError(f"there is no run {name!r} in {runs}: chaos runs lists those there are")
    raise InputError(f"{name!r} may be {' or '.join(folder.path.name for folder in matching)}")


def everything(runs: Path) -> list[RunFolder]:
    """All runs, oldest first."""
    if not runs.is_dir():
        return []
    return [RunFolder(each.absolute()) for each in sorted(runs.iterdir()) if (each / "journal.jsonl").is_file()]


def size(folder: RunFolder) -> int:
    """Bytes that a run takes on the disk."""
    return sum(file.stat().st_size for file in folder.path.rglob("*") if file.is_file())


def prune(runs: Path, *, keep: int, bytes_at_most: int | None = None) -> list[RunFolder]:
    """Remove the oldest runs that have ended.

    Args:
        keep: how many of the newest always stay.
        bytes_at_most: also stop removing when all together take no more than this; ``None`` removes all but ``keep``.

    Returns:
        What was removed.
    """
    known = everything(runs)
    candidates = [
        folder for folder in known[: len(known) - keep] if folder.scorecard.exists() or folder.rehearsal.exists()
    ]
    total = sum(size(folder) for folder in known)
    removed = []
    for folder in candidates:
        if bytes_at_most is not None and total <= bytes_at_most:
            break
        total -= size(folder)
        shutil.rmtree(folder.path)
        removed.append(folder)
    return removed


def sweep_work(folder: RunFolder) -> None:
    """Remove what only the running workload needed."""
    for path in (folder.work, folder.lab):
        shutil.rmtree(path, ignore_errors=True)


def write_json(path: Path, data: Any) -> None:
    """Write a file so that a reader sees the whole of it or the former one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(path)

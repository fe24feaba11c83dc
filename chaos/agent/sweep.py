"""Puts a node in order: records that nobody holds, and what bears our mark in the kernel without any record.

What cannot be told is never taken for clean: a record that cannot be read is named, and stays.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from chaos.agent.locks import DeviceBusy, DeviceLocks
from chaos.agent.records import Found, Records
from chaos.agent.undo import load, relieve
from injectors.contract import InjectorError, Stray, Target


class Sweep:
    """One pass over a node.

    Args:
        looks: only look: what would be undone or cleared is told as left.

    Attributes:
        swept: records that were taken over: ``fault``, ``kind``, ``owner``, and ``residue`` (empty: undone, proven).
        held: ids of faults that somebody living holds.
        cleared: marked objects without a record that were removed, in words.
        left: what is not undone, in words.
        unknown: what could not be told, in words.
    """

    def __init__(self, records: Records, locks: DeviceLocks, *, looks: bool) -> None:
        self._records = records
        self._locks = locks
        self._looks = looks
        self.swept: List[Dict[str, Any]] = []
        self.held: List[str] = []
        self.cleared: List[str] = []
        self.left: List[str] = []
        self.unknown: List[str] = []

    def as_dict(self) -> Dict[str, Any]:
        """All that was found, as JSON."""
        return {
            "swept": self.swept,
            "held": self.held,
            "cleared": self.cleared,
            "left": self.left,
            "unknown": self.unknown,
        }

    def records(self) -> None:
        """Undo every fault whose record nobody holds any more, or that is overdue."""
        for found in self._records.survey():
            record = found.record
            if record is None:
                self.unknown.append(f"an undo record cannot be read, so nobody knows what to undo: {found.problem}")
            elif found.held and not found.overdue:
                self.held.append(record.fault)
            else:
                self._relieve(found)

    def _relieve(self, found: Found) -> None:
        record = found.record
        assert record is not None
        if self._looks:
            residue = [f"fault {record.fault} ({record.kind}, of run {record.owner}) is not undone"]
        else:
            held = Records.take(found)
            if held is None:  # somebody took it just now, or has undone it
                self.held.append(record.fault)
                return
            residue = relieve(held)
            held.close()
        told = {"fault": record.fault, "kind": record.kind, "owner": record.owner, "residue": residue}
        self.swept.append(told)
        self.left += residue

    def strays(self, implementations: List[str], target: Target) -> None:
        """Remove what bears our mark, and whose device nobody has locked.

        Args:
            implementations: the kinds to ask, as ``module:Class``.
            target: the node: its namespaces.
        """
        for implementation in implementations:
            try:
                injector = load(implementation)
                for stray in injector.strays(target):
                    self._clear(injector.clear, stray)
            except Exception as error:  # noqa: BLE001 - a kind that cannot be asked must not keep the others from it
                self.unknown.append(f"{implementation} cannot tell what is left: {type(error).__name__}: {error}")

    def _clear(self, clear: Callable[[Stray], None], stray: Stray) -> None:
        try:
            locks = self._locks.take([stray.device], "sweep", "sweep")
        except DeviceBusy:  # of a fault that somebody holds, with its record
            return
        try:
            if self._looks:
                self.left.append(f"{stray.text} bears our mark, and has no record")
            else:
                clear(stray)
                self.cleared.append(stray.text)
        except (OSError, InjectorError) as error:
            self.left.append(f"{stray.text} cannot be removed: {error}")
        finally:
            locks.release()

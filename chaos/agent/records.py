"""Undo records on stable storage: one file a fault, written before the first change, removed when nothing is left.

Whoever holds a fault keeps a lock on its record. A record that nobody has locked belongs to a fault whose holder died.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Dict, List, Optional, Tuple

from injectors.contract import InjectorError, UndoRecord

_SUFFIX = ".json"


def state_folder() -> str:
    """Where this node keeps its records: ``CHAOS_STATE``, or /var/lib/chaos for root, or the user's state folder."""
    given = os.environ.get("CHAOS_STATE")
    if given:
        return given
    if os.geteuid() == 0:
        return "/var/lib/chaos"
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "chaos")


class Records:
    """The records of one node.

    Args:
        folder: the node's state folder; made if it is missing.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "faults")
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._locks: Dict[str, int] = {}

    def _path(self, fault: str) -> str:
        return os.path.join(self._folder, fault + _SUFFIX)

    def write(self, record: UndoRecord) -> None:
        """Put a record on stable storage, and lock it; returns only when it would survive a power loss.

        Raises:
            OSError: the disk is full or read-only; nothing may be changed then.
        """
        path = self._path(record.fault)
        fresh = path + ".new"
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(fd, json.dumps(record.as_dict()).encode())
            os.fsync(fd)
            os.rename(fresh, path)
            self._sync_folder()
        except BaseException:
            os.close(fd)
            raise
        former = self._locks.get(record.fault)
        self._locks[record.fault] = fd
        if former is not None:
            os.close(former)

    def remove(self, fault: str) -> None:
        """Forget a fault of which nothing is left."""
        os.unlink(self._path(fault))
        self._sync_folder()
        os.close(self._locks.pop(fault))

    def holds(self, fault: str) -> bool:
        """Whether this process has the fault's record, written or taken over."""
        return fault in self._locks

    def _sync_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def orphans(self) -> Tuple[List[UndoRecord], List[str]]:
        """Take over, locked, every record that nobody holds.

        Returns:
            The records, and what is wrong with those that cannot be read (a newer version's): they are left alone.
        """
        found, unreadable = [], []
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(_SUFFIX):
                try:
                    taken = self._take(os.path.join(self._folder, name))
                except InjectorError as error:
                    unreadable.append(str(error))
                    continue
                if taken is not None:
                    record, fd = taken
                    self._locks[record.fault] = fd
                    found.append(record)
        return found, unreadable

    @staticmethod
    def _take(path: str) -> Optional[Tuple[UndoRecord, int]]:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino != os.stat(path).st_ino:  # its holder has written it anew since it was opened
                raise BlockingIOError
            with open(path, encoding="utf-8") as file:
                return UndoRecord.from_dict(json.load(file)), fd
        except (BlockingIOError, FileNotFoundError):  # held by another, or removed meanwhile
            os.close(fd)
            return None
        except (ValueError, AttributeError, InjectorError) as error:
            os.close(fd)
            raise InjectorError(f"{path}: {error}") from error

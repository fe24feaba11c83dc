"""Undo records on stable storage: one file a fault, written before the first change, removed when nothing is left.

Two locks lie on a record. Who holds the fault has a ``flock`` on it, the agent and its guardian one together: a record
without that lock belongs to a fault whose holders died. Whoever changes something for the fault, or undoes it, has the
work lock meanwhile (an open file description lock, ``fcntl(2)``): so an agent that wakes after its guardian has undone
the fault finds the record gone, and does nothing any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import struct
import time
from dataclasses import dataclass
from typing import Iterator, List, Optional

from chaos.agent.places import records_folder
from injectors import kernel
from injectors.contract import InjectorError, UndoRecord

_SUFFIX = ".json"
_FRESH = ".new"
_FAULT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_WORK_PATIENCE = 1.0  # seconds to wait for whoever works on the same fault
_AGAIN = 0.005
_LOOKERS = 4  # so often is a lock tried that might be a passing look
_WORK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid


class RecordGone(InjectorError):
    """Somebody else has undone the fault, and removed its record."""


class RecordBusy(InjectorError):
    """Somebody else works on the fault, and does not come to an end."""


class Held:
    """A record that this process holds, alone or together with others.

    Args:
        path: the record's file.
        record: what it says.
        lock: descriptor with the ``flock``; taken over.

    Raises:
        RecordGone: the file at ``path`` is not the one that is locked.
    """

    def __init__(self, path: str, record: UndoRecord, lock: int) -> None:
        self.record = record
        self.path = path
        self.lock = lock
        try:
            self._work = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            self._work = -1
        if self._work < 0 or self.gone:
            self.close()
            raise RecordGone(f"the record of fault {record.fault} has gone")

    @property
    def gone(self) -> bool:
        """Whether the record has been removed."""
        try:
            return os.stat(self.path).st_ino != os.fstat(self.lock).st_ino
        except FileNotFoundError:
            return True

    @contextlib.contextmanager
    def working(self, patience: float = _WORK_PATIENCE) -> Iterator[None]:
        """Nobody else changes anything for this fault meanwhile.

        Raises:
            RecordGone: the fault has been undone by somebody else.
            RecordBusy: somebody else works on it for longer than ``patience`` seconds.
        """
        end = time.monotonic() + patience
        while not self._try(fcntl.F_WRLCK):
            if time.monotonic() > end:
                raise RecordBusy(f"somebody works on fault {self.record.fault} and does not come to an end")
            time.sleep(_AGAIN)
        try:
            if self.gone:
                raise RecordGone(f"fault {self.record.fault} was undone by somebody else")
            yield
        finally:
            self._try(fcntl.F_UNLCK)

    def _try(self, kind: int) -> bool:
        try:
            fcntl.fcntl(self._work, fcntl.F_OFD_SETLK, _WORK.pack(kind, os.SEEK_SET, 0, 0, 0))
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as fcntl(2) says
            return False
        return True

    def remove(self) -> None:
        """Forget the fault: nothing of it is left. Only while ``working``.

        Raises:
            OSError: the file system has become read-only.
        """
        os.unlink(self.path)
        with contextlib.suppress(OSError):  # a record that a crash brings back is of a fault with nothing left
            _sync_folder(os.path.dirname(self.path))

    def close(self) -> None:
        """Hold it no longer."""
        for fd in (self.lock, self._work):
            if fd >= 0:
                os.close(fd)
        self.lock = self._work = -1


@dataclass(frozen=True)
class Found:
    """A record as it lies on the disk.

    Attributes:
        record: what it says; ``None`` where that cannot be read.
        problem: why not.
        held: whether somebody living holds it.
    """

    path: str
    record: Optional[UndoRecord]
    problem: Optional[str]
    held: bool

    @property
    def overdue(self) -> bool:
        """Whether it should have been undone by now: its deadline has passed, or the node has booted since."""
        record = self.record
        if record is None or record.deadline_ns is None:
            return False
        return record.boot != kernel.boot_id() or time.monotonic_ns() > record.deadline_ns


class Records:
    """The records of one node.

    Args:
        state: the node's state folder; made if it is missing.
    """

    def __init__(self, state: str) -> None:
        self._folder = records_folder(state)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)

    def path(self, fault: str) -> str:
        """A fault's file.

        Raises:
            InjectorError: this cannot be a fault's id.
        """
        if not isinstance(fault, str) or not _FAULT.fullmatch(fault):
            raise InjectorError(f"{fault!r} is no fault's id: letters, digits, '.', '_' and '-' are, 200 at most")
        return os.path.join(self._folder, fault + _SUFFIX)

    def write(self, record: UndoRecord) -> Held:
        """Put a record on stable storage, and hold it; returns only when it would survive a power loss.

        Raises:
            InjectorError: there is a record of that fault already; an id is used once.
            OSError: the disk is full or read-only; nothing may be changed then.
        """
        path = self.path(record.fault)
        fresh = path + _FRESH
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = json.dumps(record.as_dict()).encode()
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
            os.link(fresh, path)  # unlike a rename, it never replaces another record
            os.unlink(fresh)
            _sync_folder(self._folder)
        except BaseException as error:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            if isinstance(error, FileExistsError):
                raise InjectorError(f"fault {record.fault} is held here already: an id is used once") from error
            raise
        return Held(path, record, fd)

    def exists(self, fault: str) -> bool:
        """Whether there is a record of a fault."""
        return os.path.exists(self.path(fault))

    def survey(self) -> List[Found]:
        """All records; touches none. What a writer that died has begun and not finished is removed."""
        found = []
        for name in sorted(os.listdir(self._folder)):
            path = os.path.join(self._folder, name)
            if name.endswith(_SUFFIX):
                looked = _look(path)
                if looked is not None:
                    found.append(looked)
            elif name.endswith(_FRESH):
                _remove_unfinished(path)
        return found

    @staticmethod
    def take(found: Found) -> Optional[Held]:
        """Hold a record that nobody holds any more, or that is overdue, whoever holds it.

        Returns:
            ``None`` if it is neither, or has gone meanwhile.
        """
        assert found.record is not None
        try:
            fd = os.open(found.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        if not _lock(fd) and not found.overdue:
            os.close(fd)
            return None
        try:
            return Held(found.path, found.record, fd)
        except RecordGone:
            return None


def adopt(path: str, lock: int) -> Held:
    """Hold a record together with the process that has sent us its locked descriptor, which is taken over.

    Raises:
        InjectorError: it cannot be read, or has gone.
    """
    try:
        record = _read(path)
    except BaseException:
        os.close(lock)
        raise
    return Held(path, record, lock)


def _read(path: str) -> UndoRecord:
    try:
        with open(path, encoding="utf-8") as file:
            return UndoRecord.from_dict(json.load(file))
    except FileNotFoundError as error:
        raise RecordGone(f"{path} has gone") from error
    except (ValueError, AttributeError, InjectorError) as error:
        raise InjectorError(f"{path}: {error}") from error


def _look(path: str) -> Optional[Found]:
    """A record as it lies there; ``None`` if it has just gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        record, problem = None, None
        try:
            record = _read(path)
        except RecordGone:
            return None
        except InjectorError as error:
            problem = str(error)
        return Found(path, record, problem, _is_locked(fd))
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _lock(fd: int) -> bool:
    """Hold a record, unless somebody does; whoever only looks, shares it for an instant."""
    for _ in range(_LOOKERS):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_AGAIN)
        else:
            return True
    return False


def _remove_unfinished(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    if not _is_locked(fd):
        with contextlib.suppress(OSError):
            os.unlink(path)
    os.close(fd)


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

"""Locks on devices, so that two faults never meet on one: whoever makes them, and from whichever controller.

A lock is a ``flock`` on a file in the node's runtime folder. Agent and guardian hold it together, by one descriptor
that both have; so it is free when both are dead, or when the fault is undone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from typing import Dict, Iterable, List, Optional, Tuple
from urllib.parse import quote

from injectors.contract import InjectorError

_LONGEST = 200  # characters of a file's name; the kernel allows 255


class DeviceBusy(InjectorError):
    """Another fault has the device.

    Args:
        owner: the run that it belongs to, where that is known.
    """

    def __init__(self, text: str, owner: Optional[str]) -> None:
        super().__init__(text)
        self.owner = owner


class DeviceLocks:
    """The locks of one node.

    Args:
        runtime: the node's runtime folder; made if it is missing.
    """

    def __init__(self, runtime: str) -> None:
        self._folder = os.path.join(runtime, "locks")

    def take(self, devices: Iterable[str], fault: str, owner: str) -> Locks:
        """Lock all these devices for a fault, or none.

        Args:
            owner: the run that the fault belongs to.

        Raises:
            DeviceBusy: one is locked; the message names the fault that has it.
            InjectorError: the folder cannot be used.
        """
        taken = Locks({})
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            for device in sorted(set(devices)):
                path = os.path.join(self._folder, _file_name(device))
                taken.files[path] = _lock(path, device, {"device": device, "fault": fault, "owner": owner})
        except OSError as error:
            taken.release()
            raise InjectorError(f"devices cannot be locked in {self._folder}: {error.strerror}") from error
        except BaseException:
            taken.release()
            raise
        return taken


class Locks:
    """The locks of one fault.

    Args:
        files: descriptors by the paths of what they lock; taken over.
    """

    def __init__(self, files: Dict[str, int]) -> None:
        self.files = files

    @property
    def descriptors(self) -> List[int]:
        """In the order of ``paths``."""
        return list(self.files.values())

    @property
    def paths(self) -> List[str]:
        """The locked files."""
        return list(self.files)

    def release(self) -> None:
        """The fault has ended: free the devices, also if another process has the same descriptors."""
        for path, fd in self.files.items():
            with contextlib.suppress(OSError):  # gone, or the file system is read-only now: unlocked is free as well
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    os.unlink(path)
        self.close()

    def close(self) -> None:
        """Hold them no longer; whoever has the same descriptors still does."""
        for fd in self.files.values():
            os.close(fd)
        self.files = {}


def _file_name(device: str) -> str:
    name = quote(device, safe=":@+=,")
    return (name if len(name) <= _LONGEST else hashlib.sha256(device.encode()).hexdigest()) + ".lock"


def _lock(path: str, device: str, note: Dict[str, str]) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino == os.stat(path).st_ino:
                os.ftruncate(fd, 0)
                os.write(fd, json.dumps(note).encode())
                return fd
        except FileNotFoundError:  # whoever had it has just ended, and removed the file
            pass
        except BlockingIOError:
            fault, owner = _whose(fd)
            os.close(fd)
            text = f"{device} is taken by {fault}: wait for its end, or aim at another"
            raise DeviceBusy(text, owner) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _whose(fd: int) -> Tuple[str, Optional[str]]:
    """The fault that has a lock, in words, and the run that it belongs to."""
    try:
        note = json.loads(os.pread(fd, 4096, 0))
        return f"fault {note['fault']} of run {note['owner']}", note["owner"]
    except (OSError, ValueError, KeyError, TypeError):
        return "another fault", None

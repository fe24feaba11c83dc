"""Where launcher and ranks meet: a Unix socket with a name, so that the next launcher can be found as well.

It is reached through a descriptor of its folder: a rank opens that before it enters its node, where the path may mean
something else, and a path in /proc is short enough for a socket's address wherever the folder lies.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


class Meeting:
    """The place where a job's launcher listens.

    Args:
        path: of the socket; its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self._folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name = path.name

    @property
    def _address(self) -> str:
        return f"/proc/self/fd/{self._folder}/{self._name}"

    def listen(self) -> socket.socket:
        """Be the launcher that is met from now on, in place of any former one. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._folder)
        listener = _socket()
        listener.bind(self._address)
        listener.listen(128)
        return listener

    def connect(self) -> socket.socket | None:
        """A connection to the present launcher; ``None`` if there is none just now."""
        sock = _socket()
        try:
            sock.connect(self._address)
        except OSError:  # no such file, or nobody listens behind it
            sock.close()
            return None
        return sock


def _socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    return sock

"""The launcher's key-value store, over which the ranks of a generation find each other's addresses."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

__all__ = ["RendezvousStore", "Store", "connect"]

_LOCAL = "127.0.0.1"
_SERVE_TIMEOUT = timedelta(seconds=5)


class RendezvousStore:
    """The store itself, on this host only. It has a thread: whoever makes one must not fork afterwards.

    Attributes:
        port: where it listens.
    """

    def __init__(self) -> None:
        listener = socket.create_server((_LOCAL, 0), backlog=128)
        self.port: int = listener.getsockname()[1]
        self._served = TCPStore(
            _LOCAL,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=_SERVE_TIMEOUT,
            master_listen_fd=listener.detach(),
        )

    def forget(self, generation: int) -> None:
        """Drop the keys of a generation that is over, so that a long job's store does not grow."""
        for key in self._served.list_keys():
            if key.startswith(_prefix(generation)):
                self._served.delete_key(key)


def connect(port: int, generation: int, timeout: float) -> Store:
    """A generation's keys, over a connection of one's own: a waiting ``get`` holds it.

    Args:
        timeout: seconds a ``get`` waits for its key.
    """
    client = TCPStore(_LOCAL, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout))
    return PrefixStore(_prefix(generation), client)


def _prefix(generation: int) -> str:
    return f"generation {generation}/"

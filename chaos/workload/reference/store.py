"""The launcher's key-value store, over which the ranks of a generation find each other's addresses."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

__all__ = ["PrefixStore", "Store", "TCPStore", "connect", "serve"]

_LOCAL = "127.0.0.1"
_SERVE_TIMEOUT = timedelta(seconds=5)


def listen() -> socket.socket:
    """A listening socket for ``serve``, on this host only; its port can be told before the store exists."""
    return socket.create_server((_LOCAL, 0), backlog=128)


def serve(listener: socket.socket) -> Store:
    """The store itself, on ``listener``, which it takes over. It starts a thread: never fork afterwards."""
    port = listener.getsockname()[1]
    return TCPStore(
        _LOCAL,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_SERVE_TIMEOUT,
        master_listen_fd=listener.detach(),
    )


def connect(port: int, timeout: float) -> Store:
    """A connection of one's own: a waiting ``get`` holds it. ``timeout``: seconds a ``get`` waits for its key."""
    return TCPStore(_LOCAL, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout))

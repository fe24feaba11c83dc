"""JSON messages with descriptors over a Unix SOCK_SEQPACKET socket: how the keeper, its nodes and its clients talk."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

# An environment and an argv travel in one packet. The kernel's default send buffer holds 208 KiB.
MAX_MESSAGE = 192 * 1024
MAX_DESCRIPTORS = 250  # SCM_MAX_FD is 253


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message, with descriptors.

    Raises:
        ValueError: the message is larger than one packet may be.
        OSError: the other side has gone.
    """
    data = json.dumps(message).encode()
    if len(data) > MAX_MESSAGE:
        raise ValueError(
            f"a message of {len(data)} bytes: at most {MAX_MESSAGE} fit (a shorter command or environment)"
        )
    if fds:
        socket.send_fds(sock, [data], list(fds))
    else:
        sock.send(data)


def receive(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """The next message and its descriptors (close-on-exec); ``None`` when the other side has closed."""
    data, fds, _, _ = socket.recv_fds(sock, MAX_MESSAGE, MAX_DESCRIPTORS)
    for fd in fds:
        os.set_inheritable(fd, False)
    if not data:
        return None, fds
    message = json.loads(data)
    assert isinstance(message, dict)
    return message, fds


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that nobody took over."""
    for fd in fds:
        os.close(fd)

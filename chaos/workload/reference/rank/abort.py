"""Breaks a process group that waits for somebody who will not answer.

gloo's own ``abort()`` and ``shutdown()`` do nothing in torch 2.13: whoever waits in a collective waits until its
time-out. Shutting down the sockets below it wakes every waiter within milliseconds. A rank's control plane is a Unix
socket, so every TCP connection of the process belongs to a generation, those to the store included.
"""

from __future__ import annotations

import os
import socket


def shut_connections() -> int:
    """Shut down every TCP connection of this process, both ways; returns how many.

    Never a listener: gloo ends the process when accept fails. Descriptors stay open: their owners close them.
    """
    shut = 0
    for connection in _connections():
        with connection:
            try:
                connection.shutdown(socket.SHUT_RDWR)
                shut += 1
            except OSError:  # not connected yet, or no longer
                continue
    return shut


def _connections() -> list[socket.socket]:
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a folder of descriptors, on a path that must be fast
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115 - as above
                continue
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        stream = sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6)
        if stream and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.append(sock)
        else:
            sock.close()
    return found

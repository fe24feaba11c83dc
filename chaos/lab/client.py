"""Talks to a lab's keeper: start processes on nodes and GPUs, power nodes, read the links."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.lab import wire
from chaos.lab.errors import LabError
from chaos.lab.topology import LabSpec


class LabProcess:
    """A process started in the lab; its connection to the keeper lives as long as the process does.

    Attributes:
        pid: the process id as its own node sees it.
        node: where it runs; ``None`` is the head.
    """

    def __init__(self, client: LabClient, sock: socket.socket, pid: int, node: int | None) -> None:
        self._client = client
        self._sock = sock
        self._code: int | None = None
        self.pid = pid
        self.node = node

    def poll(self) -> int | None:
        """The exit code, minus a signal's number, or ``None`` while it runs."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end.

        Args:
            timeout: seconds; ``None`` waits without bound.

        Returns:
            The exit code, minus a signal's number, or ``None`` when the time is over. A process whose lab has gone was
            killed with it: ``-9``.
        """
        if self._code is None:
            waiter = select.poll()
            waiter.register(self._sock, select.POLLIN)
            if not waiter.poll(None if timeout is None else timeout * 1000):
                return None
            try:
                message, _ = wire.receive(self._sock)
            except ConnectionError:
                message = None
            self._code = -9 if message is None else message["exit"]
            self._sock.close()
        return self._code

    def signal(self, number: int) -> None:
        """Send a signal to the process and everything in its session's first group."""
        if self._code is None:
            self._client.request({"op": "signal", "node": self.node, "pid": self.pid, "signal": int(number)})

    def terminate(self, grace: float, kill: int = 9) -> int | None:
        """Ask it to end, wait ``grace`` seconds, then kill it. Returns the exit code."""
        try:
            self.signal(15)
            if self.wait(grace) is None:
                self.signal(kill)
        except LabError:  # the node has gone off meanwhile; its processes went with it
            pass
        return self.wait(grace)


class LabClient:
    """A lab, by the folder in which its keeper listens.

    Args:
        directory: the lab's folder.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            folder = os.open(self.directory, os.O_PATH | os.O_CLOEXEC)
            try:
                sock.connect(f"/proc/self/fd/{folder}/keeper.sock")
            finally:
                os.close(folder)
        except OSError as error:
            sock.close()
            raise LabError(f"no lab answers in {self.directory}: {error.strerror}") from error
        return sock

    def request(self, message: wire.Message) -> wire.Message:
        """Ask the keeper one thing.

        Raises:
            LabError: no keeper answers, or it refuses; the message says why.
        """
        with self._connect() as sock:
            return _exchange(sock, message)[0]

    def show(self, *, links: bool = False) -> wire.Message:
        """The lab's nodes and their power; with ``links`` also every link's state and counters."""
        return self.request({"op": "show", "links": links})

    @property
    def keeper(self) -> int:
        """The process id of the lab's keeper, as seen from here: when that process ends, the lab is gone.

        Raises:
            LabError: no keeper answers.
        """
        with self._connect() as sock:
            return peer(sock)

    @property
    def spec(self) -> LabSpec:
        """The lab's size."""
        return LabSpec(**self.show()["spec"])

    def spawn(
        self,
        argv: Sequence[str],
        *,
        node: int | None = None,
        gpu: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> LabProcess:
        """Start a process on a node, in a GPU's network namespace, or (no node) on the head.

        Args:
            argv: the command; the first word is looked up in ``PATH`` of ``env``.
            env: the whole environment; by default this process's own.
            stdin, stdout, stderr: descriptors to hand over; ``None`` is /dev/null.

        Raises:
            LabError: the node is off, or the command cannot be executed.
        """
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        sock = self._connect()
        try:
            fds = [null if fd is None else fd for fd in (stdin, stdout, stderr)]
            order = {
                "op": "spawn",
                "node": node,
                "gpu": gpu,
                "argv": list(argv),
                "cwd": cwd or str(Path.cwd()),
            }
            answer, _ = _exchange(sock, order | {"env": dict(os.environ if env is None else env)}, fds)
        except BaseException:
            sock.close()
            raise
        finally:
            os.close(null)
        return LabProcess(self, sock, answer["pid"], node)

    def run(self, argv: Sequence[str], **where: Any) -> subprocess.CompletedProcess[bytes]:
        """Start a process as ``spawn`` does and collect its output (both streams together)."""
        reader, writer = os.pipe()
        try:
            process = self.spawn(argv, stdout=writer, stderr=writer, **where)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            output = pipe.read()
        code = process.wait()
        assert code is not None
        return subprocess.CompletedProcess(list(argv), code, output)

    def power(self, node: int, state: str) -> wire.Message:
        """Cut a node's power (``off``: all its processes die at once) or boot it (``on``); idempotent."""
        return self.request({"op": "power", "node": node, "state": state})

    def wait_power(self, node: int, state: str, timeout: float = 10.0) -> None:
        """Wait until a node is really ``on`` or ``off``.

        Raises:
            LabError: it is not within ``timeout`` seconds.
        """
        end = time.monotonic() + timeout
        while self.show()["nodes"][node]["power"] != state:
            if time.monotonic() > end:
                raise LabError(f"node {node} is not {state} after {timeout:g} s")
            time.sleep(0.002)

    def namespaces(self, node: int) -> dict[str, int]:
        """Descriptors of a node's namespaces: pid, mnt, uts, net, gpu0 ..., nvswitch. The caller closes them: an open
        one keeps its namespace alive when the node is off.

        Raises:
            LabError: the node is off.
        """
        with self._connect() as sock:
            answer, fds = _exchange(sock, {"op": "namespaces", "node": node})
        return dict(zip(answer["names"], fds, strict=True))


def peer(sock: socket.socket) -> int:
    """The process id of whoever listens at the other end of a Unix socket."""
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def _exchange(sock: socket.socket, message: wire.Message, fds: Sequence[int] = ()) -> tuple[wire.Message, list[int]]:
    try:
        wire.send(sock, message, fds)
        answer, received = wire.receive(sock)
    except ConnectionError as error:
        raise LabError("the lab's keeper has gone") from error
    if answer is None:
        raise LabError("the lab's keeper has gone")
    if "error" in answer:
        raise LabError(answer["error"])
    return answer, received

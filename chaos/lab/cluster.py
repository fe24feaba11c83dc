"""Starts labs and finds those that stay."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from chaos.lab import wire
from chaos.lab.client import LabClient, peer
from chaos.lab.errors import LabError
from chaos.lab.topology import LabSpec

START_TIMEOUT = 30.0  # seconds; a lab of 200 nodes on a busy machine stays below it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Lab(LabClient):
    """A lab that this process has started; use it as a context manager, or call ``close``.

    It lives no longer than this process: the keeper ends when its lifeline, a pipe that only we hold, is closed.
    """

    def __init__(self, directory: Path, pid: int, outer: subprocess.Popen[bytes], lifeline: int | None) -> None:
        super().__init__(directory)
        self.pid = pid
        self._outer = outer
        self._lifeline = lifeline

    @classmethod
    def up(cls, spec: LabSpec, directory: Path, *, stays: bool = False) -> Self:
        """Bring a lab up and wait until every node has booted.

        Args:
            spec: its size.
            directory: its folder, made if it is missing; nodes keep their state below it.
            stays: whether it outlives this process.

        Raises:
            LabError: the kernel does not allow it; the message says what is missing and the remedy.
        """
        directory.mkdir(parents=True, exist_ok=True)
        ours, theirs = wire.pair()
        reader, writer = (None, None) if stays else os.pipe()
        config = {
            "spec": spec.as_dict(),
            "directory": str(directory),
            "report": theirs.fileno(),
            "lifeline": reader,
        }
        outer = subprocess.Popen(
            # Without `site`, and without what `-m` loads, an interpreter is up sooner; it is told where to find what
            # this one finds.
            [sys.executable, "-S", "-c", "from chaos.lab import keeper; keeper.main()", json.dumps(config)],
            pass_fds=[fd for fd in (theirs.fileno(), reader) if fd is not None],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if os.environ.get("CHAOS_DEBUG") else subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env=os.environ | {"PYTHONPATH": _search_path()},
        )
        theirs.close()
        if reader is not None:
            os.close(reader)
        try:
            pid = _await_ready(ours)
        except BaseException:
            outer.kill()
            outer.wait()
            if writer is not None:
                os.close(writer)
            raise
        finally:
            ours.close()
        return cls(directory, pid, outer, writer)

    def close(self) -> None:
        """Take the lab down and wait until the kernel has removed every process of it. Idempotent."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        elif self._outer.poll() is None:
            with contextlib.suppress(LabError):  # it has gone already
                self.request({"op": "down"})
        self._outer.wait()

    def kill(self) -> None:
        """SIGKILL the keeper: the lab's power station blows up."""
        if self._outer.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has gone just now
                os.kill(self.pid, signal.SIGKILL)
        self._outer.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _search_path() -> str:
    """Lets the keeper import the same code as this process."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([root, *(folder for folder in sys.path if folder and folder != root)])


def _await_ready(sock: socket.socket) -> int:
    waiter = select.poll()
    waiter.register(sock, select.POLLIN)
    pid = 0
    while True:
        if not waiter.poll(START_TIMEOUT * 1000):
            raise LabError(
                f"the lab was not up after {START_TIMEOUT:g} s: set CHAOS_DEBUG=1 to see its keeper's output"
            )
        message, _ = wire.receive(sock)
        if message is None:
            raise LabError("the lab's keeper died while it started: set CHAOS_DEBUG=1 to see its output")
        if "error" in message:
            raise LabError(_explain(message))
        if message.get("ready"):
            return pid
        pid = message["pid"]


def _explain(failure: wire.Message) -> str:
    if failure["step"] == "namespaces" and failure["errno"] in (errno.EPERM, errno.ENOSPC, errno.EACCES):
        return (
            f"the kernel does not let this user make namespaces ({failure['error']}): run as root, or allow user "
            "namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    if failure["errno"] == errno.EOPNOTSUPP:
        return f"the kernel lacks veth or bridge devices ({failure['error']}): load the modules veth and bridge"
    return f"the lab cannot be built: {failure['error']}"


# -- labs that stay ------------------------------------------------------------------------------------------------


def labs_folder() -> Path:
    """Where labs that stay have their folders: below /run for root, below the user's runtime folder otherwise."""
    if os.geteuid() == 0:
        return Path("/run/chaos/labs")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (Path(runtime) if runtime else Path.home() / ".local/state") / "chaos/labs"


def check_name(name: str) -> str:
    """A lab's name, if it is one.

    Raises:
        LabError: it is not.
    """
    if not _NAME.fullmatch(name):
        raise LabError(f"{name!r} is no name for a lab: letters, digits, '.', '_' and '-' are, 64 at most")
    return name


def labs() -> list[str]:
    """Names of the labs that stay, whether they still answer or not."""
    folder = labs_folder()
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


def find(name: str) -> LabClient:
    """A lab that stays.

    Raises:
        LabError: there is none of that name; the message lists those there are.
    """
    directory = labs_folder() / check_name(name)
    if not directory.is_dir():
        known = ", ".join(labs()) or "none"
        raise LabError(f"there is no lab {name!r} (up: {known}): chaos lab up {name} makes it")
    return LabClient(directory)


def up(name: str, spec: LabSpec) -> Lab:
    """Bring up a lab that stays under a name.

    Raises:
        LabError: it is up already, or cannot be made.
    """
    directory = labs_folder() / check_name(name)
    if directory.is_dir():
        try:
            LabClient(directory).show()
        except LabError:
            shutil.rmtree(directory)  # its keeper was killed: nothing of it is left but this folder
        else:
            raise LabError(f"lab {name!r} is up already: chaos lab down {name} takes it down")
    directory.mkdir(parents=True, mode=0o700)
    try:
        return Lab.up(spec, directory, stays=True)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def down(name: str) -> None:
    """Take a lab down and remove its folder.

    Raises:
        LabError: there is none of that name.
    """
    client = find(name)
    with contextlib.suppress(LabError, OSError):  # it had gone before
        _end(client)
    shutil.rmtree(client.directory)
    for parent in (labs_folder(), labs_folder().parent):
        try:
            parent.rmdir()
        except OSError:  # other labs, or the agent's locks, are there
            break


def _end(client: LabClient) -> None:
    """Order a keeper to end, and wait until the kernel has removed every process of its lab."""
    with client._connect() as sock:
        keeper = os.pidfd_open(peer(sock))
        try:
            wire.send(sock, {"op": "down"})
            # Its sockets are closed before its processes are gone; a PID 1 counts as ended only after them.
            waiter = select.poll()
            waiter.register(keeper, select.POLLIN)
            waiter.poll()
        finally:
            os.close(keeper)

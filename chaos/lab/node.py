"""The PID 1 of an emulated node: starts what the keeper asks for, reaps, reports exits, and is the node's life.

When it dies the kernel ends every process of the node at once: that is the node's power loss.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from chaos.lab import namespace, wire

CHILD_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)


@dataclass(frozen=True)
class Boot:
    """What a node's PID 1 is given at its start.

    Attributes:
        node: its number.
        boot_id: a fresh one for every boot.
        control: the socket on which the keeper sends orders.
        gpus: descriptors of the GPUs' network namespaces.
        switch: descriptor of the NVSwitch's network namespace.
        network: descriptor of the node's own network namespace.
        state: folder that outlives the node's boots.
    """

    node: int
    boot_id: str
    control: socket.socket
    gpus: tuple[int, ...]
    switch: int
    network: int
    state: Path


def spawn(order: wire.Message, fds: list[int], network: int | None) -> int:
    """Fork and execute one command; the child is the leader of a new session.

    Args:
        order: ``argv``, ``env``, ``cwd``.
        fds: the child's stdin, stdout and stderr.
        network: descriptor of the network namespace to enter, or ``None`` to stay.

    Returns:
        The child's process id as seen here.

    Raises:
        OSError: the command cannot be executed (not found, no such folder, no command at all).
    """
    ready, report = os.pipe()
    child = os.fork()
    if child == 0:
        _become(order, fds, network, report)
    os.close(report)
    with os.fdopen(ready, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(child, 0)
        error, text = json.loads(failure)
        raise OSError(error, text)
    return child


def _become(order: wire.Message, fds: list[int], network: int | None, report: int) -> NoReturn:
    what = folder = order.get("cwd") or "/"
    try:
        for number in CHILD_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.setsid()
        if network is not None:
            namespace.setns(network, namespace.NEWNET)
        for target, source in enumerate(fds[:3]):
            os.dup2(source, target)
        os.chdir(folder)
        what = order["argv"][0] if order["argv"] else "no command"
        os.execvpe(what, order["argv"], order["env"])
    except OSError as error:
        os.write(report, json.dumps([error.errno, f"{what}: {error.strerror}"]).encode())
    except ValueError as error:  # an empty command, or a NUL byte in it
        os.write(report, json.dumps([errno.EINVAL, f"{what}: {error}"]).encode())
    finally:
        os._exit(127)


def exit_code(status: int) -> int:
    """A wait status as subprocess gives it: the exit code, or minus the signal's number."""
    return os.waitstatus_to_exitcode(status)


def child_wakeup() -> int:
    """Make SIGCHLD readable: the descriptor to poll. Nothing then waits in a busy loop for exits."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def reap() -> list[tuple[int, int]]:
    """Process ids and exit codes of all children that have ended."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if process == 0:
            return ended
        ended.append((process, exit_code(status)))


def drain(fd: int) -> None:
    """Empty a wake-up pipe."""
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return


def signal_group(process: int, number: int) -> None:
    """Signal a child's whole session, or nothing if it has gone."""
    try:
        os.killpg(process, number)
    except ProcessLookupError:
        return


def run(boot: Boot) -> NoReturn:
    """Be the node: prepare its mounts and name, then serve the keeper until it closes the control socket."""
    keep = {0, 1, 2, boot.control.fileno(), boot.switch, boot.network, *boot.gpus}
    for fd in (int(name) for name in os.listdir("/proc/self/fd")):  # noqa: PTH208 - a folder of descriptors
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:  # the folder's own descriptor
                continue
    _furnish(boot)
    environment = {
        "CHAOS_NODE": str(boot.node),
        "CHAOS_LAB_NETNS": json.dumps(
            {f"gpu{k}": f"/proc/1/fd/{fd}" for k, fd in enumerate(boot.gpus)}
            | {"nvswitch": f"/proc/1/fd/{boot.switch}"}
        ),
        "CHAOS_STATE": str(boot.state),
        "CHAOS_RUNTIME": str(boot.state.parent / "run"),  # whoever breaks something in this lab meets there
    }
    wakeup = child_wakeup()
    poll = select.poll()
    poll.register(boot.control, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    wire.send(boot.control, {"ready": True})
    while True:
        for fd, _ in poll.poll():
            if fd == wakeup:
                drain(wakeup)
                for process, code in reap():
                    wire.send(boot.control, {"exit": process, "code": code})
                continue
            order, fds = wire.receive(boot.control)
            if order is None:
                os._exit(0)
            wire.send(boot.control, _obey(boot, order, fds, environment))
            wire.close_all(fds)


def _obey(boot: Boot, order: wire.Message, fds: list[int], environment: dict[str, str]) -> wire.Message:
    if order["op"] == "signal":
        signal_group(order["pid"], order["signal"])
        return {"ok": True}
    gpu = order.get("gpu")
    extra = environment | ({} if gpu is None else {"CHAOS_GPU": str(gpu)})
    try:
        pid = spawn(order | {"env": order["env"] | extra}, fds, None if gpu is None else boot.gpus[gpu])
    except OSError as error:
        return {"error": error.strerror}
    return {"pid": pid}


def _furnish(boot: Boot) -> None:
    """Give the node its own view: process table, boot id, host name, and a run folder that a boot empties."""
    namespace.mount(None, "/", None, namespace.MS_REC | namespace.MS_PRIVATE)
    namespace.mount("proc", "/proc", "proc")
    boot_file = boot.state / "boot_id"
    boot_file.write_text(boot.boot_id + "\n")
    namespace.mount(str(boot_file), "/proc/sys/kernel/random/boot_id", None, namespace.MS_BIND)
    name = f"node{boot.node}".encode()
    ctypes.CDLL(None).sethostname(name, len(name))


def describe(pid: int) -> dict[str, Any]:
    """What a keeper tells of a node's PID 1: its id and its namespaces' inodes."""
    return {
        "pid": pid,
        "pidns": Path(f"/proc/{pid}/ns/pid").stat().st_ino,
        "netns": Path(f"/proc/{pid}/ns/net").stat().st_ino,
    }

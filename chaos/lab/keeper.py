"""The process that holds a lab: PID 1 of the lab's outer PID namespace, single-threaded, one poll loop.

It owns the anonymous network namespaces, powers nodes on and off, and starts every process of the lab. When it dies,
by whatever signal, the kernel ends everything below it and the namespaces go with their last process. It ends with
whoever started it (end of its lifeline), or stays when it was given none.

Started by ``cluster.Lab.up`` in an interpreter of its own; nobody else needs to call ``main``.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from chaos.lab import namespace, node, parallel, wire
from chaos.lab.errors import LabError
from chaos.lab.topology import LabSpec

SOCKET_NAME = "keeper.sock"


@dataclass
class Node:
    """One node as the keeper knows it; without ``pid`` it is off."""

    number: int
    state: Path
    pid: int | None = None
    boot_id: str = ""
    booted_ns: int = 0
    boots: int = 0
    control: socket.socket | None = None
    network: int = -1
    switch: int = -1
    gpus: tuple[int, ...] = ()
    inside: dict[str, Any] = field(default_factory=dict)  # its PID 1 and namespaces, told once at boot: it may be dying
    switched_ns: int = 0  # when its power was last switched
    going: int | None = None  # the PID 1 that was killed and is not yet reaped
    waiting: deque[Client] = field(default_factory=deque)  # who gets the node's next answers, in order
    processes: dict[int, Client] = field(default_factory=dict)

    @property
    def power(self) -> str:
        if self.pid is not None:
            return "on"
        return "off" if self.going is None else "going off"


@dataclass(eq=False)
class Client:
    """One connection: it asks one thing after the other; a spawned process's exit comes on the one that spawned it."""

    sock: socket.socket

    def tell(self, message: wire.Message, fds: tuple[int, ...] = ()) -> None:
        try:
            wire.send(self.sock, message, fds)
        except OSError:  # it has gone; its end of file is handled where it is polled
            return


class Keeper:
    """The lab's state and its poll loop."""

    def __init__(self, spec: LabSpec, directory: Path, lifeline: int | None) -> None:
        self._spec = spec
        self._directory = directory
        self._lifeline = lifeline
        self._spine = namespace.new_network()
        self._head = namespace.open_namespace("net")
        self._self_pid = namespace.open_namespace("pid")
        self._wakeup = node.child_wakeup()
        self._poll = select.poll()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._clients: dict[int, Client] = {}
        self._controls: dict[int, Node] = {}
        self._head_processes: dict[int, Client] = {}
        self._started_ns = time.monotonic_ns()
        self._nodes = [Node(n, directory / f"node{n}") for n in spec.all_nodes]

    def build(self) -> None:
        """Boot every node, wire all of it, and listen."""
        for each in self._nodes:
            each.state.mkdir(exist_ok=True)
            self._make_networks(each)
            self._boot(each)
        # The nodes boot on the other cores meanwhile, and are smaller for having been forked before this.
        from chaos.lab.links import Wiring  # noqa: PLC0415

        self._wiring = Wiring(self._spec, self._spine, self._head)
        self._wiring.build_backbone()
        self._wire(self._nodes)
        for each in self._nodes:
            self._await_boot(each)
        # A path of a Unix socket may have 107 bytes; a run's folder can be deeper than that.
        folder = os.open(self._directory, os.O_PATH | os.O_CLOEXEC)
        (self._directory / SOCKET_NAME).unlink(missing_ok=True)
        self._listener.bind(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        os.close(folder)
        self._listener.listen(128)
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._wakeup, select.POLLIN)
        if self._lifeline is not None:
            self._poll.register(self._lifeline, select.POLLIN)

    def serve(self) -> NoReturn:
        """Answer until the lifeline ends or somebody asks to take the lab down."""
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._lifeline:
                    os._exit(0)
                elif fd == self._wakeup:
                    self._reap()
                elif fd == self._listener.fileno():
                    sock, _ = self._listener.accept()
                    self._clients[sock.fileno()] = Client(sock)
                    self._poll.register(sock, select.POLLIN)
                elif fd in self._controls:
                    self._hear_node(self._controls[fd])
                elif fd in self._clients:
                    self._hear_client(self._clients[fd])

    # -- nodes -------------------------------------------------------------------------------------------------

    def _make_networks(self, each: Node) -> None:
        each.gpus = tuple(namespace.new_network() for _ in range(self._spec.gpus))
        each.switch, each.network = namespace.new_network(), namespace.new_network()

    def _wire(self, nodes: list[Node]) -> None:
        build = self._wiring.build_node
        parallel.share([partial(build, each.number, each.network, each.gpus, each.switch) for each in nodes])

    def _boot(self, each: Node) -> None:
        """Start a node's PID 1; ``_await_boot`` waits for it."""
        each.boot_id, each.boots = _fresh_boot_id(), each.boots + 1
        ours, theirs = wire.pair()
        boot = node.Boot(each.number, each.boot_id, theirs, each.gpus, each.switch, each.network, each.state)
        namespace.unshare(namespace.NEWPID)
        pid = os.fork()
        if pid == 0:
            try:
                namespace.unshare(namespace.NEWNS | namespace.NEWUTS)
                namespace.setns(each.network, namespace.NEWNET)
                node.run(boot)
            except BaseException as error:  # noqa: BLE001 - a node's PID 1 has nobody above it to tell
                wire.send(theirs, {"failed": f"{type(error).__name__}: {error}"})
            finally:
                os._exit(1)
        namespace.setns(self._self_pid, namespace.NEWPID)  # our next children are our own again
        theirs.close()
        each.pid, each.control = pid, ours
        self._controls[ours.fileno()] = each
        self._poll.register(ours, select.POLLIN)

    def _await_boot(self, each: Node) -> None:
        assert each.pid is not None
        assert each.control is not None
        ready, _ = wire.receive(each.control)
        if ready != {"ready": True}:
            raise OSError(f"node {each.number} did not boot: {ready and ready.get('failed')}")
        each.inside = node.describe(each.pid)
        each.booted_ns = time.monotonic_ns()

    def _power_off(self, each: Node) -> None:
        if each.pid is None:
            return
        os.kill(each.pid, signal.SIGKILL)
        each.switched_ns = time.monotonic_ns()
        each.going, each.pid = each.pid, None
        self._unplug(each)

    def _unplug(self, each: Node) -> None:
        """Forget a node that is off: its links, its descriptors, and whoever waits for one of its processes."""
        assert each.control is not None
        self._poll.unregister(each.control)
        del self._controls[each.control.fileno()]
        each.control.close()
        each.control = None
        wire.close_all([*each.gpus, each.switch, each.network])
        self._wiring.unplug_node(each.number)
        for client in each.waiting:
            client.tell({"error": f"node {each.number} went off"})
        for client in each.processes.values():
            client.tell({"exit": -signal.SIGKILL})
        each.waiting.clear()
        each.processes.clear()

    def _hear_node(self, each: Node) -> None:
        assert each.control is not None
        try:
            message, _ = wire.receive(each.control)
        except ConnectionError:
            message = None
        if message is None:  # its PID 1 has died without our doing
            self._power_off(each)
        elif "exit" in message:
            client = each.processes.pop(message["exit"], None)
            if client:
                client.tell({"exit": message["code"]})
        else:
            client = each.waiting.popleft()
            if "pid" in message:
                each.processes[message["pid"]] = client
            client.tell(message)

    def _reap(self) -> None:
        node.drain(self._wakeup)
        for pid, code in node.reap():
            client = self._head_processes.pop(pid, None)
            if client:
                client.tell({"exit": code})
            for each in self._nodes:
                if each.going == pid:
                    each.going = None
                elif each.pid == pid:  # died by itself
                    each.pid = None
                    self._unplug(each)

    # -- clients -----------------------------------------------------------------------------------------------

    def _hear_client(self, client: Client) -> None:
        fds: list[int] = []
        try:
            message, fds = wire.receive(client.sock)
            if message is None:
                self._forget(client)
            else:
                self._answer(client, message, fds)
        except ConnectionError:
            self._forget(client)
        except LabError as error:
            client.tell({"error": str(error)})
        except Exception as error:  # noqa: BLE001 - whatever one request brings up, the lab stays
            client.tell({"error": f"the lab's keeper cannot do this: {type(error).__name__}: {error}"})
        finally:
            wire.close_all(fds)

    def _forget(self, client: Client) -> None:
        self._poll.unregister(client.sock)
        del self._clients[client.sock.fileno()]
        client.sock.close()

    def _answer(self, client: Client, message: wire.Message, fds: list[int]) -> None:
        match message["op"]:
            case "show":
                client.tell(self._show(links=message.get("links", False)))
            case "spawn" | "signal":
                self._order(client, message, fds)
            case "power":
                each = self._node(message)
                if message["state"] == "off":
                    self._power_off(each)
                elif each.going is not None:
                    client.tell({"error": f"node {each.number} is still going off"})
                    return
                elif each.pid is None:
                    each.switched_ns = time.monotonic_ns()
                    self._make_networks(each)
                    self._boot(each)
                    try:
                        self._wire([each])
                        self._await_boot(each)
                    except BaseException:
                        self._power_off(each)
                        raise
                client.tell({"power": each.power, "boot_id": each.boot_id, "switched_ns": each.switched_ns})
            case "namespaces":
                self._hand_out(client, self._node(message))
            case "down":
                client.tell({"ok": True})
                os._exit(0)
            case other:
                client.tell({"error": f"unknown request {other!r}"})

    def _node(self, message: wire.Message) -> Node:
        try:
            self._spec.check(message["node"], message.get("gpu"))
        except ValueError as error:
            raise LabError(str(error)) from None
        return self._nodes[message["node"]]

    def _order(self, client: Client, message: wire.Message, fds: list[int]) -> None:
        """Start or signal a process, on the head or on a node."""
        if message["node"] is not None:
            each = self._node(message)
            if each.control is None:
                client.tell({"error": f"node {each.number} is off"})
                return
            each.waiting.append(client)
            wire.send(each.control, message, fds)
        elif message["op"] == "signal":
            node.signal_group(message["pid"], message["signal"])
            client.tell({"ok": True})
        else:
            try:
                pid = node.spawn(message, fds, None)
            except OSError as error:
                client.tell({"error": error.strerror})
                return
            self._head_processes[pid] = client
            client.tell({"pid": pid})

    def _hand_out(self, client: Client, each: Node) -> None:
        if each.pid is None:
            client.tell({"error": f"node {each.number} is off"})
            return
        opened = [namespace.open_namespace(kind, each.pid) for kind in ("pid", "mnt", "uts")]
        names = ["pid", "mnt", "uts", "net", *(f"gpu{g}" for g in range(len(each.gpus))), "nvswitch"]
        client.tell({"names": names}, (*opened, each.network, *each.gpus, each.switch))
        wire.close_all(opened)

    def _show(self, *, links: bool) -> wire.Message:
        answer: dict[str, Any] = {
            "spec": self._spec.as_dict(),
            "started_ns": self._started_ns,
            "nodes": [self._describe(each, links=links) for each in self._nodes],
        }
        if links:
            answer["spine"] = self._links(self._spine)
        return answer

    def _describe(self, each: Node, *, links: bool) -> dict[str, Any]:
        told: dict[str, Any] = {
            "node": each.number,
            "spare": self._spec.is_spare(each.number),
            "power": each.power,
            "boot_id": each.boot_id,
            "boots": each.boots,
            "booted_ns": each.booted_ns,
            "state": str(each.state),
            "processes": len(each.processes),
        }
        if each.pid is not None:
            told |= each.inside
            if links:
                told["links"] = self._links(each.network)
                told["nvswitch"] = self._links(each.switch)
                told["gpus"] = [self._links(fd) for fd in each.gpus]
        return told

    @staticmethod
    def _links(fd: int) -> list[dict[str, Any]]:
        from chaos.lab.links import read_links  # noqa: PLC0415

        return read_links(fd)


def _fresh_boot_id() -> str:
    """As the kernel makes its own."""
    return Path("/proc/sys/kernel/random/uuid").read_text(encoding="ascii").strip()


def _map_user() -> None:
    """Become root of a user namespace of our own, mapped to the ordinary user who called."""
    user, group = os.getuid(), os.getgid()
    namespace.unshare(namespace.NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def main() -> None:
    """Enter the outer namespaces, fork the keeper as their PID 1, and wait for it."""
    config = json.loads(sys.argv[1])
    report = socket.socket(fileno=config["report"])
    try:
        if os.geteuid() != 0:
            _map_user()
        namespace.unshare(namespace.NEWPID | namespace.NEWNET | namespace.NEWNS)
    except OSError as error:
        wire.send(report, {"error": f"{error.strerror}", "errno": error.errno, "step": "namespaces"})
        sys.exit(1)
    keeper = os.fork()
    if keeper:
        wire.send(report, {"pid": keeper})
        report.close()
        if config["lifeline"] is not None:
            os.close(config["lifeline"])
        _, status = os.waitpid(keeper, 0)
        sys.exit(abs(os.waitstatus_to_exitcode(status)))
    gc.disable()  # what is made here stays: collecting it costs a tenth of the start
    try:
        namespace.die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the command, which then ends us
        namespace.mount(None, "/", None, namespace.MS_REC | namespace.MS_PRIVATE)
        namespace.mount("proc", "/proc", "proc")
        lab = Keeper(LabSpec(**config["spec"]), Path(config["directory"]), config["lifeline"])
        lab.build()
    except Exception as error:  # noqa: BLE001 - the one place where a failure to start becomes a message
        number = getattr(error, "errno", getattr(error, "code", None))
        wire.send(report, {"error": f"{type(error).__name__}: {error}", "errno": number, "step": "build"})
        os._exit(1)
    wire.send(report, {"ready": True})
    report.close()
    gc.freeze()
    gc.enable()
    lab.serve()

"""Faults of containers: a signal to one, a pause, a stop, a network less.

A container is held by its full id: its name may be given to another one while the fault lasts. The agent runs on the
container's node, and sees its processes: what the engine says is held against the kernel. A container bears no mark of
ours, so there is nothing that a search without records could find.
"""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any, ClassVar, Dict, List, Literal, Mapping, Optional, Tuple, Type

from injectors import _processes, kernel
from injectors._containers import (
    LABEL,
    SOCKET_HELP,
    WHICH,
    Container,
    Which,
    belongs,
    choose,
    cpu_ticks,
    frozen,
    interfaces,
    life,
    listing,
    names,
    one_of_both,
    own_ids,
    processes,
)
from injectors._engine import SOCKET, Engine, EngineGone, NotThere, Refused
from injectors.contract import (
    Evidence,
    Ground,
    InjectorError,
    Order,
    Phase,
    Reality,
    Seconds,
    Stray,
    Support,
    Target,
    TargetKey,
    UndoRecord,
)

_LOOK_AGAIN = 0.01  # seconds
_MOST_GRACE = 4.0  # seconds: the fault has to be there before its deadline
_STOP_MARGIN = 1.0  # seconds for an engine to act on what has been ordered
_KILL_PATIENCE = 10.0  # seconds for an engine to kill, and to put away what a container had mounted
# Where engines take subnets from that nobody has asked for (moby, daemon/networkdriver: default address pools).
_POOLS = tuple(ip_network(each) for each in ("172.16.0.0/12", "192.168.0.0/16"))


def _words(record: UndoRecord) -> str:
    return f"container {record.before['name']} ({record.before['id'][:12]})"


def _engine(record: UndoRecord) -> Engine:
    return Engine(record.params["socket"])


def _look(record: UndoRecord) -> Optional[Container]:
    """The container now, by its id; ``None`` if the engine says that it has gone.

    Raises:
        EngineGone: the engine cannot be asked, so that nothing is known.
    """
    try:
        return Container(_engine(record).inspect(record.before["id"]))
    except NotThere:
        return None


def _same_start(record: UndoRecord, container: Container) -> bool:
    """Whether it has not been started again since the fault was planned."""
    return bool(container.state["StartedAt"] == record.before["started_at"])


def _gone(record: UndoRecord, phase: Phase) -> Evidence:
    """The container has been removed meanwhile; perhaps another one has its name."""
    named = [each for each in _engine(record).containers() if record.before["name"] in names(each)]
    text = f"{_words(record)} has gone"
    if named:
        text += f"; {listing(named)} has its name now, and is left alone"
    numbers = {"gone": True, "successor": named[0]["Id"] if named else None}
    return Evidence(False if phase == "after" else None, text, numbers)


class _Fault:
    """What all faults of containers have in common."""

    kind: ClassVar[str]
    where: ClassVar[Mapping[Ground, Reality]] = {"node": "real"}
    danger: ClassVar[Optional[str]] = None
    targets: ClassVar[Tuple[TargetKey, ...]] = ("node",)
    runs_on: ClassVar[Literal["node", "controller"]] = "node"

    def support(self, params: Any, target: Target) -> Support:
        """Possible on a node with a container engine that answers, for whoever may use its socket."""
        if target.namespaces:
            lab = (
                "a container engine: a node of the lab has none, and the machine's own containers are no part of it; "
                "write `cluster: FILE`, an inventory of nodes with an engine"
            )
            return Support("real", (lab,))
        if not hasattr(os, "pidfd_open"):
            return Support("real", ("pidfds: Linux 5.3 and Python 3.9 or newer",))
        try:
            Engine(params.socket).version()
        except EngineGone as error:
            return Support("real", (str(error),))
        return Support("real")

    @staticmethod
    def _identify(order: Order) -> Container:
        """The container that is meant, in whatever state.

        Raises:
            InjectorError: it is none, or several, or the one that we are inside of.
        """
        params = order.params
        engine = Engine(params.socket)
        try:
            container = Container(engine.inspect(choose(engine.containers(), params.container, params.label)))
        except NotThere as error:
            raise InjectorError(f"the container has just gone: {error}") from error
        if {container.id, container.id[:12]} & own_ids():
            raise InjectorError(f"{container.words} is the one that this agent runs in: it is never hit")
        return container

    def _find(self, order: Order) -> Container:
        """The container that is meant: it runs, and its processes can be seen.

        Raises:
            InjectorError: it is none, or several, or it is in no state for a fault.
        """
        container = self._identify(order)
        words = container.words
        if container.state["Paused"]:
            raise InjectorError(f"{words} is paused already, by somebody else: continue it first")
        if not container.running:
            raise InjectorError(f"{words} is {container.state['Status']}: only a running container can be hit")
        if not belongs(container.state["Pid"], container.id):
            raise InjectorError(
                f"the processes of {words} cannot be seen from here: run the agent on the node itself, "
                "or in a container with the node's PID namespace (--pid=host)"
            )
        return container

    @staticmethod
    def _keep(container: Container) -> Dict[str, Any]:
        """What every record keeps of a container."""
        pid = int(container.state["Pid"])
        return {
            "id": container.id,
            "name": container.name,
            "started_at": container.state["StartedAt"],
            "policy": container.policy,
            "pid": pid,
            "start": kernel.start_ticks(pid),
        }

    @staticmethod
    def _refuse_shared(order: Order, container: Container) -> None:
        """Whoever shares its network namespace would lose the network with it, and not get it back."""
        shared = {f"container:{container.id}", f"container:{container.name}"}
        listed = Engine(order.params.socket).containers()
        others = [each for each in listed if each.get("HostConfig", {}).get("NetworkMode") in shared]
        if others:
            raise InjectorError(
                f"container {container.name} shares its network namespace with {listing(others)}, "
                "which would lose the network as well: aim at a container that shares none"
            )

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The container: what a second fault does to it would be undone with the first."""
        return (f"container:{self._identify(order).id}",)

    def prepare(self, record: UndoRecord) -> None:
        """Make sure once more that it is still that container."""
        if not belongs(record.before["pid"], record.before["id"]):
            raise InjectorError(f"{_words(record)} has ended, or was started again, since it was looked at")

    def strays(self, target: Target) -> List[Stray]:
        """None: a container bears no mark, and what somebody else does to one looks the same."""
        return []

    def clear(self, stray: Stray) -> None:
        """Never called: there are no strays."""
        raise InjectorError(f"{self.kind} leaves no mark by which {stray.text} could be ours")


# -- container.signal ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignalParams:
    """Parameters of ``container.signal``."""

    signal: Literal["KILL", "TERM", "STOP", "INT", "HUP", "QUIT", "SEGV", "ABRT", "USR1", "USR2"] = field(
        metadata={"help": "the signal's name; STOP needs `for:`, and is followed by CONT"}
    )
    container: Optional[str] = field(default=None, metadata={"help": WHICH})
    label: Optional[str] = field(default=None, metadata={"help": LABEL})
    socket: str = field(default=SOCKET, metadata={"help": SOCKET_HELP})

    def __post_init__(self) -> None:
        one_of_both(self.container, self.label)

    def problem(self, duration: Optional[float]) -> Optional[str]:
        """What is wrong with this signal and this `for:`; ``None`` where they fit."""
        return _processes.signal_problem(self.signal, duration)


class Signal(_Fault):
    """``container.signal``: a signal to the main process of a container, as the kernel would send it."""

    kind: ClassVar[str] = "container.signal"
    about: ClassVar[str] = "A signal to the main process of a container: KILL (it crashes), TERM, STOP for a time, ..."
    mechanism: ClassVar[str] = (
        "The signal goes through a pidfd to the container's main process and not through the engine: to the engine it "
        "is a crash, upon which the restart policy acts, while after `docker kill` it would not."
    )
    undoing: ClassVar[str] = (
        "A stopped process is continued with SIGCONT; every other signal leaves nothing to undo: whether the container "
        "comes back is for its restart policy, and the evidence tells."
    )
    proof: ClassVar[str] = "The process is not in a stopped state (/proc/PID/stat), or has gone."
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"  # STOP is undone by CONT; the others leave nothing
    duration: ClassVar[Literal["required", "optional", "none"]] = "optional"

    witnessed: ClassVar[str] = (
        "The main process has ended, is stopped and uses no CPU, or has been delivered a signal that it handles; what "
        "the engine says of the container is told."
    )
    example: ClassVar[Mapping[str, str]] = {
        "on": "{node: 0}",
        "with": "{container: trainer, signal: KILL}",
    }
    Params: ClassVar[Type[Any]] = SignalParams

    def __init__(self) -> None:
        self._pidfd: Optional[int] = None

    def plan(self, order: Order) -> UndoRecord:
        """Find the container's main process."""
        container = self._find(order)
        if order.params.signal != "STOP":
            self._refuse_shared(order, container)
        return UndoRecord.of(self, order, self._keep(container))

    def prepare(self, record: UndoRecord) -> None:
        """Open the process's pidfd, and make sure once more that it is still that process."""
        wanted = record.before
        try:
            self._pidfd = os.pidfd_open(wanted["pid"])
        except ProcessLookupError as error:
            raise InjectorError(f"{_words(record)} has ended since it was looked at") from error
        super().prepare(record)
        if kernel.start_ticks(wanted["pid"]) != wanted["start"]:
            raise InjectorError(f"{_words(record)} was started again since it was looked at")

    def inject(self, record: UndoRecord) -> int:
        """Send the signal."""
        assert self._pidfd is not None, "prepare comes first"
        try:
            signal.pidfd_send_signal(self._pidfd, signal.Signals[f"SIG{record.params['signal']}"])
        except ProcessLookupError as error:
            raise InjectorError(f"{_words(record)} ended by itself before the signal") from error
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """Look at the process (dead, stopped, or running), and at what the engine makes of it."""
        if record.params["signal"] == "STOP":
            [seen] = _processes.watch_stopped([record.before], phase, budget, f" of {_words(record)}")
            return seen
        if phase == "before":
            alive = _processes.runs(record.before)
            return Evidence(not alive, f"{_words(record)} {'runs' if alive else 'has ended'}", {"alive": alive})
        end = time.monotonic() + budget
        if phase == "after":
            text, numbers = self._what_became(record, end)
            return Evidence(False, f"nothing to undo: the signal was over when it was delivered; {text}", numbers)
        started = time.monotonic()
        if not self._ends_within(record, budget):
            return self._witness_survivor(record)
        waited = (time.monotonic() - started) * 1000
        text, numbers = self._what_became(record, end)
        process = f"process {record.before['pid']} of {_words(record)} has ended ({waited:.1f} ms later)"
        return Evidence(True, f"{process}; {text}", {"ended": True, **numbers})

    def _ends_within(self, record: UndoRecord, budget: float) -> bool:
        if self._pidfd is None:
            return not _processes.runs(record.before)
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(budget * 1000))

    def _witness_survivor(self, record: UndoRecord) -> Evidence:
        """A signal that did not end the process must have been handled by it, or it was no fault."""
        name, pid = record.params["signal"], record.before["pid"]
        bit = 1 << (signal.Signals[f"SIG{name}"] - 1)
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                masks = dict(line.rstrip("\n").split(":\t", 1) for line in file if line.startswith(("Sig", "Shd")))
        except (FileNotFoundError, ProcessLookupError):
            return Evidence(True, f"process {pid} of {_words(record)} has ended", {"ended": True})
        pending, ignored, caught = (
            any(int(masks[key], 16) & bit for key in keys) for keys in (("SigPnd", "ShdPnd"), ("SigIgn",), ("SigCgt",))
        )
        numbers = {"ended": False, "pending": pending, "ignored": ignored, "handled": caught}
        if pending:
            return Evidence(False, f"SIG{name} is still pending at process {pid} of {_words(record)}", numbers)
        if caught and not ignored:
            return Evidence(True, f"SIG{name} was delivered; process {pid} of {_words(record)} handles it", numbers)
        why = (
            "ignores it" if ignored else "does not handle it, and to a container's first process it then means nothing"
        )
        return Evidence(False, f"SIG{name} had no effect: process {pid} of {_words(record)} {why}", numbers)

    @staticmethod
    def _what_became(record: UndoRecord, end: float) -> Tuple[str, Dict[str, Any]]:
        """What the engine has made of a container that has ended; a restart that is due is waited for until ``end``."""
        policy = record.before["policy"]
        while True:
            try:
                container = _look(record)
            except InjectorError as error:
                return str(error), {"engine": False}
            if container is None:
                return "it has gone", {"gone": True}
            back = container.running and not _same_start(record, container)
            settled = not container.state["Running"] and policy == "no"
            if back or settled or time.monotonic() > end:
                break
            time.sleep(_LOOK_AGAIN)
        numbers = {"back": back, "policy": policy, "restarts": container.there.get("RestartCount", 0)}
        if back:
            return f"it is back by itself (restart policy {policy}): {life(container)}", numbers
        return f"it is {life(container)} (restart policy {policy})", numbers

    def undo(self, record: UndoRecord) -> int:
        """Continue a stopped process, if it is still the same one: the kernel alone is asked, not the engine."""
        if record.params["signal"] == "STOP" and record.boot == kernel.boot_id():
            _processes.resume(record.before)
        return time.monotonic_ns()

    def residue(self, record: UndoRecord) -> List[str]:
        """A process that is still stopped."""
        if record.params["signal"] != "STOP" or record.boot != kernel.boot_id():
            return []
        if not _processes.is_stopped(record.before):
            return []
        return [f"process {record.before['pid']} of {_words(record)} is still stopped"]


# -- container.pause -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PauseParams(Which):
    """Parameters of ``container.pause``."""


class Pause(_Fault):
    """``container.pause``: all processes of a container stand still, unreported."""

    kind: ClassVar[str] = "container.pause"
    about: ClassVar[str] = "All processes of a container stand still: they hang, and no connection is closed."
    mechanism: ClassVar[str] = "The engine pauses the container: the freezer of its control group stops all of it."
    undoing: ClassVar[str] = "The engine continues it, if it is still paused since the same start."
    proof: ClassVar[str] = "The engine does not call it paused, or says that it has gone or was started again."
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"

    witnessed: ClassVar[str] = "The engine reports the container as paused, and its processes use no CPU."
    example: ClassVar[Mapping[str, str]] = {"on": "{node: 0}", "with": "{container: trainer}", "for": "5s"}
    Params: ClassVar[Type[Any]] = PauseParams

    def plan(self, order: Order) -> UndoRecord:
        """Keep which start of the container is meant."""
        return UndoRecord.of(self, order, self._keep(self._find(order)))

    def inject(self, record: UndoRecord) -> int:
        """Pause it; the engine answers when it stands still."""
        _engine(record).call("POST", f"/containers/{record.before['id']}/pause")
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """The engine's word, the freezer's state, and the CPU time that the container's processes use meanwhile."""
        container = _look(record)
        if container is None:
            return _gone(record, phase)
        paused = bool(container.state["Paused"])
        alive = processes(record.before["id"])
        held = frozen(alive[0]) if alive else None
        ticks = cpu_ticks(alive)
        time.sleep(min(_processes.CPU_SAMPLE, budget / 2))
        ticks = cpu_ticks(alive) - ticks
        freezer = {None: "cannot be seen", True: "holds", False: "is open"}[held]
        text = (
            f"{_words(record)} is {life(container)}; its freezer {freezer}; "
            f"its {len(alive)} processes used {ticks} ticks of CPU meanwhile"
        )
        numbers = {"paused": paused, "frozen": held, "processes": len(alive), "cpu_ticks": ticks}
        stands = paused and held is not False and ticks == 0 and bool(alive)
        return Evidence(stands, text, numbers)

    def undo(self, record: UndoRecord) -> int:
        """Continue it, where it is still paused."""
        if self._ours(record):
            try:
                _engine(record).call("POST", f"/containers/{record.before['id']}/unpause")
            except (NotThere, Refused):  # somebody was faster, or removes it: what holds now is asked, not guessed
                if self._ours(record):
                    raise
        return time.monotonic_ns()

    @staticmethod
    def _ours(record: UndoRecord) -> bool:
        container = _look(record)
        return container is not None and bool(container.state["Paused"]) and _same_start(record, container)

    def residue(self, record: UndoRecord) -> List[str]:
        """A container that is still paused."""
        return [f"{_words(record)} is still paused"] if self._ours(record) else []


# -- container.stop --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StopParams(Which):
    """Parameters of ``container.stop``."""

    grace: Seconds = field(
        default=1.0, metadata={"help": "whole seconds from SIGTERM to SIGKILL, 4s at most; 0s kills at once"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.grace <= _MOST_GRACE or self.grace != int(self.grace):
            raise ValueError(f"a grace of {self.grace:g} s: 0s, 1s, 2s, 3s and 4s are possible")


class Stop(_Fault):
    """``container.stop``: a container ends in an orderly way, and is started again at the end."""

    kind: ClassVar[str] = "container.stop"
    about: ClassVar[str] = "A container is stopped, and started again at the end: its processes and memory are lost."
    mechanism: ClassVar[str] = (
        "The engine stops the container: SIGTERM, after `grace` SIGKILL. Its restart policy is at rest meanwhile, "
        "until the engine itself is started again."
    )
    undoing: ClassVar[str] = (
        "The engine starts the same container, unless something else has: its disk is as it was, an address that the "
        "engine had chosen may be another one, which the evidence tells."
    )
    proof: ClassVar[str] = "The engine has started it since, or says that it has gone."
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"

    witnessed: ClassVar[str] = "The engine reports the container as stopped, and its former main process has gone."
    example: ClassVar[Mapping[str, str]] = {"on": "{node: 0}", "with": "{container: trainer}", "for": "10s"}
    Params: ClassVar[Type[Any]] = StopParams

    def __init__(self) -> None:
        self._planned = False  # by this very instance, which then knows whether the stop was ordered
        self._ordered = False

    def plan(self, order: Order) -> UndoRecord:
        """Keep which start is meant; refuse a container that could not be started again."""
        container = self._find(order)
        if container.there["HostConfig"].get("AutoRemove"):
            raise InjectorError(
                f"container {container.name} is removed when it ends (--rm), and could not be started again: "
                "container.signal can kill it"
            )
        self._refuse_shared(order, container)
        self._planned = True
        addresses = {name: end.get("IPAddress", "") for name, end in container.networks.items()}
        return UndoRecord.of(self, order, {**self._keep(container), "addresses": addresses})

    def inject(self, record: UndoRecord) -> int:
        """Stop it; the engine answers when it has ended."""
        grace = int(record.params["grace"])
        self._ordered = True
        path = f"/containers/{record.before['id']}/stop"
        _engine(record).call("POST", path, query={"t": str(grace)}, patience=grace + _KILL_PATIENCE)
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """The engine's word, and the processes that are left of it."""
        container = _look(record)
        if container is None:
            return _gone(record, phase)
        alive = processes(record.before["id"])
        stopped = not container.state["Running"]
        text = f"{_words(record)} is {life(container)}; {len(alive)} processes of it are alive"
        numbers: Dict[str, Any] = {"running": not stopped, "processes": len(alive)}
        if not stopped and phase != "before" and not _same_start(record, container):
            who = "it was started again" if phase == "after" else "it came back by itself, or by somebody else"
            text += f"; {who} at {container.state['StartedAt']} (restart policy {record.before['policy']})"
            for name, former in record.before["addresses"].items():
                now = container.networks.get(name, {}).get("IPAddress", "")
                if former and now != former:
                    text += f"; its address on {name} is {now or 'none'} now, and was {former}"
        return Evidence(stopped and not alive, text, numbers)

    def undo(self, record: UndoRecord) -> int:
        """Start it, where nothing has since; a stop that is still on its way is waited for."""
        container = self._settled(record)
        if container is not None and not container.state["Running"] and _same_start(record, container):
            try:
                path = f"/containers/{record.before['id']}/start"
                _engine(record).call("POST", path, patience=_KILL_PATIENCE)
            except NotThere:
                if _look(record) is not None:  # something that it needs has gone, such as its network
                    raise
        return time.monotonic_ns()

    def _settled(self, record: UndoRecord) -> Optional[Container]:
        """The container, when no stop is under way any more.

        An engine goes on with a stop although whoever ordered it has died: then a container that still runs says
        nothing yet.
        """
        waits = record.params["grace"] + _STOP_MARGIN if self._ordered or not self._planned else 0.0
        end = time.monotonic() + waits
        while True:
            container = _look(record)
            done = container is None or not container.state["Running"] or not _same_start(record, container)
            if done or time.monotonic() > end:
                return container
            time.sleep(_LOOK_AGAIN)

    def residue(self, record: UndoRecord) -> List[str]:
        """A container that has not been started since."""
        container = _look(record)
        if container is None or container.state["Running"] or not _same_start(record, container):
            return []
        return [f"{_words(record)} is {life(container)}, and was not started again"]


# -- container.disconnect --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DisconnectParams(Which):
    """Parameters of ``container.disconnect``."""

    network: Optional[str] = field(
        default=None, metadata={"help": "the network's name or full id; may be left out where there is only one"}
    )
    address: Literal["same", "any"] = field(
        default="same",
        metadata={"help": "whether a network that gives no address on request may give another one afterwards"},
    )


class Disconnect(_Fault):
    """``container.disconnect``: a container loses one of its networks, and gets it back at the end."""

    kind: ClassVar[str] = "container.disconnect"
    about: ClassVar[str] = "A container loses one of its networks: the interface vanishes, and its connections hang."
    mechanism: ClassVar[str] = "The engine disconnects the container from the network, and removes its interface."
    undoing: ClassVar[str] = (
        "The engine connects it again, with the same aliases, links, IPv4 and IPv6 address. An address that the engine "
        "had chosen is a fixed one from then on, and the interface may be called otherwise (eth2 for eth1)."
    )
    proof: ClassVar[str] = "The engine shows the container on the network with all of these, or says that it has gone."
    reversal: ClassVar[Literal["exact", "self", "none"]] = "exact"
    duration: ClassVar[Literal["required", "optional", "none"]] = "required"

    witnessed: ClassVar[str] = (
        "The engine no longer lists the network at the container, and the interface has gone from its namespace."
    )
    example: ClassVar[Mapping[str, str]] = {
        "on": "{node: 0}",
        "with": "{container: trainer, network: training}",
        "for": "5s",
    }
    Params: ClassVar[Type[Any]] = DisconnectParams

    def _end(self, order: Order, container: Container) -> Tuple[str, Dict[str, Any]]:
        """The network's name, and the container's end of it."""
        mode = container.there["HostConfig"].get("NetworkMode", "")
        if mode in ("host", "none") or mode.startswith("container:"):
            raise InjectorError(f"container {container.name} has no network of its own (it has {mode!r})")
        wanted, there = order.params.network, container.networks
        if wanted is None and len(there) == 1:
            return next(iter(there.items()))
        found = [(name, end) for name, end in there.items() if wanted in (name, end["NetworkID"])]
        if not found:
            what = "several networks: write one as `network`" if wanted is None else f"no network {wanted!r}"
            raise InjectorError(f"container {container.name} has {what} (it has {', '.join(sorted(there)) or 'none'})")
        return found[0]

    def devices(self, order: Order) -> Tuple[str, ...]:
        """The container's end of this network; another network of it may be cut at the same time."""
        container = self._identify(order)
        _, end = self._end(order, container)
        return (f"container:{container.id}:network:{end['NetworkID']}",)

    def plan(self, order: Order) -> UndoRecord:
        """Keep the whole end of the network; refuse where its address could not be brought back."""
        container = self._find(order)
        self._refuse_shared(order, container)
        name, end = self._end(order, container)
        if order.params.address == "same":
            self._refuse_chosen(order, name, end)
        interface = interfaces(container.state["Pid"]).get(end["MacAddress"])
        kept = {"network": end["NetworkID"], "network_name": name, "end": end, "interface": interface}
        return UndoRecord.of(self, order, {**self._keep(container), **kept})

    @staticmethod
    def _refuse_chosen(order: Order, name: str, end: Dict[str, Any]) -> None:
        """An engine gives an address on request only from a subnet that somebody has written."""
        if (end.get("IPAMConfig") or {}).get("IPv4Address"):
            return
        network = Engine(order.params.socket).network(end["NetworkID"])
        default = network.get("Options", {}).get("com.docker.network.bridge.default_bridge") == "true"
        chosen = [
            each["Subnet"]
            for each in network.get("IPAM", {}).get("Config") or []
            if each.get("Gateway") and any(_within(each["Subnet"], pool) for pool in _POOLS)
        ]
        if default or chosen:
            raise InjectorError(
                f"network {name} has a subnet of the engine's choice ({', '.join(chosen) or 'the default bridge'}), "
                f"from which it may refuse to give {end['IPAddress']} back; write `address: any` if another address "
                "will do, or give the network a subnet (docker network create --subnet)"
            )

    def inject(self, record: UndoRecord) -> int:
        """Disconnect it."""
        path = f"/networks/{record.before['network']}/disconnect"
        _engine(record).call("POST", path, {"Container": record.before["id"], "Force": False})
        return time.monotonic_ns()

    def witness(self, record: UndoRecord, phase: Phase, budget: float) -> Evidence:
        """The engine's word, and the interfaces in the container's network namespace."""
        container = _look(record)
        if container is None:
            return _gone(record, phase)
        name, former = record.before["network_name"], record.before["end"]
        end = container.on(record.before["network"])
        there = interfaces(container.state["Pid"]) if container.state["Running"] else {}
        shown = ", ".join(sorted(there.values())) or "none"
        here = there.get(former["MacAddress"])
        numbers = {
            "connected": end is not None,
            "interface": here,
            "address": None if end is None else end["IPAddress"],
            "address6": None if end is None else end.get("GlobalIPv6Address") or None,
        }
        text = f"{_words(record)} is {'not ' if end is None else ''}on network {name}; its interfaces are {shown}"
        if end is not None:
            text += f"; its address is {end['IPAddress'] or 'none'}"
            if end["IPAddress"] != former["IPAddress"]:
                text += f", and was {former['IPAddress']}"
            if here != record.before["interface"]:
                text += f"; its interface is {here or 'none'}, and was {record.before['interface'] or 'none'}"
        elif phase == "after":
            text += "; " + ("the network is there" if self._network(record) else "the network has gone")
        return Evidence(end is None and here is None and container.running, text, numbers)

    @staticmethod
    def _network(record: UndoRecord) -> Optional[Dict[str, Any]]:
        try:
            return _engine(record).network(record.before["network"])
        except NotThere:
            return None

    def undo(self, record: UndoRecord) -> int:
        """Connect it again as it was. A network that was removed meanwhile cannot be, and is not made anew."""
        container = _look(record)
        if container is not None and container.on(record.before["network"]) is None and self._network(record):
            try:
                self._connect(record, fixed=bool(record.before["end"]["IPAddress"]))
            except Refused:
                if record.params["address"] == "same":
                    raise
                self._connect(record, fixed=False)
            except NotThere:
                if self.residue(record):
                    raise
        return time.monotonic_ns()

    @staticmethod
    def _connect(record: UndoRecord, *, fixed: bool) -> None:
        end = record.before["end"]
        settings = {key: end.get(key) for key in ("Aliases", "Links", "DriverOpts", "MacAddress", "IPAMConfig")}
        if end.get("GwPriority"):
            settings["GwPriority"] = end["GwPriority"]
        if fixed:
            addresses = dict(end.get("IPAMConfig") or {})
            for key, former in (("IPv4Address", end["IPAddress"]), ("IPv6Address", end.get("GlobalIPv6Address"))):
                if former:
                    addresses[key] = former
            settings["IPAMConfig"] = addresses
        path = f"/networks/{record.before['network']}/connect"
        _engine(record).call("POST", path, {"Container": record.before["id"], "EndpointConfig": settings})

    def residue(self, record: UndoRecord) -> List[str]:
        """A container that is not on the network, or not as it was."""
        container = _look(record)
        if container is None:
            return []
        name, former = record.before["network_name"], record.before["end"]
        end = container.on(record.before["network"])
        if end is None:
            return [f"{_words(record)} is not on network {name}"] if self._network(record) else []
        left = []
        for key, what in (("Aliases", "alias"), ("Links", "link")):
            lacks = sorted(set(former.get(key) or []) - set(end.get(key) or []))
            left += [f"{_words(record)} lacks its {what} {each} on network {name}" for each in lacks]
        if record.params["address"] == "same" and container.running:
            for key in ("IPAddress", "GlobalIPv6Address"):
                if former.get(key) and end.get(key) != former[key]:
                    left.append(f"{_words(record)} has address {end.get(key)} on network {name}, and had {former[key]}")
        return left


def _within(subnet: str, pool: Any) -> bool:
    network = ip_network(subnet, strict=False)
    return network.version == pool.version and network.subnet_of(pool)

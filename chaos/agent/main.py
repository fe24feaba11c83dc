"""The agent's main loop: reads requests, rings the holders, keeps the lease. ``python -m chaos.agent.main``."""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import sys
import threading
import time
from typing import Dict, List, Optional

from chaos import __version__
from chaos.agent import protocol
from chaos.agent.clock import real_time
from chaos.agent.examine import examine
from chaos.agent.guard import Guard
from chaos.agent.holder import Holder, Job, Node
from chaos.agent.locks import DeviceLocks
from chaos.agent.places import runtime_folder, state_folder
from chaos.agent.protocol import Message
from chaos.agent.records import Records
from chaos.agent.sweep import Sweep
from chaos.agent.undo import describe, load
from chaos.agent.wakeup import readable_at
from injectors import kernel
from injectors.contract import InjectorError, Target, UndoRecord

_READER_PATIENCE = 0.5  # seconds for a controller to read on


class Agent:
    """One agent, until its input ends, its lease lapses, or it is told goodbye.

    Args:
        state: the node's state folder.
        out: descriptor of the pipe to the controller.
        looks: only look, as ``--look`` says: records are read and nothing is undone, armed or swept.
    """

    def __init__(self, state: str, out: int, *, looks: bool) -> None:
        self._looks = looks
        self._records = Records(state)
        self._locks = DeviceLocks(runtime_folder())
        guard = Guard(os.path.abspath(state), self._lost_guardian)
        self._node = Node(self._records, self._locks, guard)
        self._pipe = out
        os.set_blocking(out, False)
        self._writable = select.poll()
        self._writable.register(out, select.POLLOUT)
        self._mute = False
        self._holders: Dict[str, Holder] = {}
        self._left: List[str] = []
        self._out = threading.Lock()
        self._heard = time.monotonic()
        # The lab's nodes know the namespaces of their GPUs and their switch; elsewhere there are none.
        self._namespaces: Dict[str, str] = json.loads(os.environ.get("CHAOS_LAB_NETNS", "{}"))

    def emit(self, message: Message) -> None:
        """Send one line; silently, if the controller has gone or reads no more: what it asked for is undone anyway."""
        data = protocol.encode(message)
        with self._out:
            while data and not self._mute:
                try:
                    data = data[os.write(self._pipe, data) :]
                except BlockingIOError:  # no undo waits for a controller that hangs
                    self._mute = not self._writable.poll(_READER_PATIENCE * 1000)
                except OSError:
                    self._mute = True

    def greet(self) -> None:
        """Undo what former agents of this node left behind, unless we only look, then say hello."""
        sweep = Sweep(self._records, self._locks, looks=self._looks)
        sweep.records()
        self._left = sweep.left + sweep.unknown
        self.emit(
            {
                "event": "hello",
                "protocol": protocol.VERSION,
                "version": __version__,
                "python": platform.python_version(),
                "boot": kernel.boot_id(),
                "pid": os.getpid(),
                "left": self._left,
                "swept": sweep.swept,
            }
        )

    def _lost_guardian(self, why: str) -> None:
        """Nobody would undo what we hold if we died: so it ends now."""
        self.emit({"event": "guardian lost", "error": why})
        for holder in list(self._holders.values()):
            holder.stop()

    def serve(self) -> None:
        """Read requests until the end, then undo everything that is not to be held."""
        lines = protocol.Lines()
        poll = select.poll()
        poll.register(0, select.POLLIN)
        # A terminal's Ctrl-C is for the controller, which then tells us.
        stop = readable_at((signal.SIGTERM, signal.SIGHUP), ignored=(signal.SIGINT,))
        poll.register(stop, select.POLLIN)
        goodbye = None
        while goodbye is None and not self._mute:
            ready = dict(poll.poll(self._lease_left() * 1000))
            if stop in ready or self._lease_left() == 0:
                break
            if 0 not in ready:
                continue
            try:
                data = os.read(0, 65536)
            except BlockingIOError:  # one socket for both directions does not block either
                continue
            if not data:
                break
            self._heard = time.monotonic()
            try:
                messages = lines.feed(data)
            except ValueError as error:  # whatever this is, it is no controller that we could still rely on
                self.emit({"re": None, "error": str(error)})
                break
            for message in messages:
                if message.get("op") == "bye":
                    goodbye = message
                else:
                    self._answer(message)
        self._finish(undo_all=goodbye is not None)
        if goodbye is not None:
            self.emit({"re": goodbye.get("id")})

    def _lease_left(self) -> float:
        """Seconds; without any fault there is nothing to keep a lease for, but an idle agent does not stay either."""
        return max(0.0, self._heard + protocol.LEASE - time.monotonic())

    def _finish(self, *, undo_all: bool) -> None:
        for holder in self._holders.values():
            if undo_all or not holder.job.hold_on_eof or not holder.ordered:
                holder.stop()
        for holder in self._holders.values():
            holder.join()
        if not self._looks:  # a guardian of a former agent may have died while we were here
            Sweep(self._records, self._locks, looks=False).records()

    def _answer(self, message: Message) -> None:
        try:
            self._obey(message)
        except Exception as error:  # noqa: BLE001 - whatever one request brings up, the faults are still held
            text = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
            self.emit({"re": message.get("id"), "error": text})

    def _obey(self, message: Message) -> None:
        op, answer = message["op"], {"re": message["id"]}
        if "target" in message:
            message["target"]["namespaces"] = self._namespaces
        if op in ("ping", "renew"):  # every request renews the lease; these two do nothing else
            self.emit({**answer, "t": time.monotonic_ns()})
        elif op == "probe":
            injector = load(message["implementation"])
            support = injector.support(injector.Params(**message["params"]), Target(**message["target"]))
            self.emit({**answer, "reality": support.reality, "missing": list(support.missing)})
        elif op == "arm":
            self._arm(Job.of(message))
        elif op == "fire":
            holder = self._holder(message)
            if message["at"] > holder.job.at:
                raise InjectorError(f"fault {holder.job.fault} was armed for an earlier instant: arm it for this one")
            holder.fire(message["at"])
            self.emit(answer)
        elif op == "disarm":
            if message["fault"] not in self._holders:
                raise InjectorError(f"no fault {message['fault']} was armed here")
            self._holders[message["fault"]].stop()  # one that has just ended by itself is disarmed as well
            self.emit(answer)
        elif op == "status":
            self.emit({**answer, **self._status(message["fault"], message.get("record"))})
        elif op == "examine":
            threading.Thread(target=self._examine, args=(answer,), name="examine").start()
        elif op == "sweep":
            # In a thread of its own, as arming is: undoing may take its time, and orders must not wait for it.
            threading.Thread(target=self._sweep, args=(message, answer), name="sweep").start()
        else:
            raise InjectorError(f"this agent does not know the request {op!r}")

    def _examine(self, answer: Message) -> None:
        try:
            self.emit({**answer, "checks": examine(), "wall_ns": time.time_ns()})
        except Exception as error:  # noqa: BLE001 - whatever it is, the controller must hear it
            self.emit({**answer, "error": describe(error)})

    def _sweep(self, message: Message, answer: Message) -> None:
        try:
            sweep = Sweep(self._records, self._locks, looks=self._looks)
            sweep.records()
            sweep.copies(message.get("copies", []))
            sweep.strays(message["implementations"], Target(namespaces=self._namespaces))
            self.emit({**answer, **sweep.as_dict()})
        except Exception as error:  # noqa: BLE001 - whatever it is, the controller must hear it
            self.emit({**answer, "error": describe(error)})

    def _arm(self, job: Job) -> None:
        former = self._holders.get(job.fault)
        if self._looks:
            raise InjectorError("this agent only looks: it makes no faults")
        if self._left:
            raise InjectorError(f"this node still has a former fault: {'; '.join(self._left)}; chaos sweep clears it")
        if self._records.exists(job.fault) or (former is not None and former.is_alive() and not former.refused):
            raise InjectorError(f"fault {job.fault} is held here already: an id is used once")
        self._holders[job.fault] = Holder(job, self._node, self.emit)
        self._holders[job.fault].start()

    def _status(self, fault: str, record: Optional[Message]) -> Message:
        """What there is of a fault; without a record here, a copy of it lets the kernel itself be asked."""
        holder = self._holders.get(fault)
        there = self._records.exists(fault)
        residue: List[str] = []
        if record is not None and not there:
            kept = UndoRecord.from_dict(record)
            residue = load(kept.implementation).residue(kept)
        return {"held": holder is not None and holder.is_alive(), "record": there, "residue": residue}

    def _holder(self, message: Message) -> Holder:
        holder = self._holders.get(message["fault"])
        if holder is None or not holder.is_alive():
            raise InjectorError(f"no fault {message['fault']} is armed here")
        return holder


def main() -> None:
    """Run one agent over stdin and stdout; with ``--look`` one that changes nothing."""
    pipe = os.dup(1)
    os.dup2(2, 1)  # what an injector prints, or a program that it starts, goes to the log
    try:
        agent = Agent(state_folder(), pipe, looks="--look" in sys.argv[1:])
        agent.greet()
    except (OSError, InjectorError) as error:
        os.write(pipe, protocol.encode({"event": "hello", "error": f"{error}"}))
        sys.exit(1)
    with real_time():  # an order that comes in time must not wait for a busy machine; arming has threads of its own
        agent.serve()


if __name__ == "__main__":
    main()

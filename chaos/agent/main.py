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
from typing import Dict

from chaos import __version__
from chaos.agent import protocol
from chaos.agent.clock import real_time
from chaos.agent.holder import Holder, Job, load, undo_orphan
from chaos.agent.protocol import Message
from chaos.agent.records import Records, state_folder
from injectors import kernel
from injectors.contract import InjectorError, Target


class Agent:
    """One agent, until its input ends, its lease lapses, or it is told goodbye.

    Args:
        records: the node's undo records.
        out: descriptor of the pipe to the controller.
    """

    def __init__(self, records: Records, out: int) -> None:
        self._records = records
        self._pipe = out
        self._holders: Dict[str, Holder] = {}
        self._out = threading.Lock()
        self._heard = time.monotonic()
        # The lab's nodes know the namespaces of their GPUs and their switch; elsewhere there are none.
        self._namespaces: Dict[str, str] = json.loads(os.environ.get("CHAOS_LAB_NETNS", "{}"))

    def emit(self, message: Message) -> None:
        """Send one line; silently, if the controller has gone: what it asked for is undone all the same."""
        data = protocol.encode(message)
        try:
            with self._out:
                while data:
                    data = data[os.write(self._pipe, data) :]
        except OSError:
            return

    def greet(self) -> None:
        """Undo what a former agent of this node left behind, then say hello.

        Raises:
            InjectorError: there are records that this version cannot read, so that it cannot undo them.
        """
        left = []
        orphans, unreadable = self._records.orphans()
        for record in orphans:
            try:
                left += undo_orphan(record, self._records)
            except Exception as error:  # noqa: BLE001 - one bad record must not keep the others from being undone
                left.append(f"fault {record.fault}: {error}")
        if unreadable:
            raise InjectorError("; ".join(unreadable))
        self.emit(
            {
                "event": "hello",
                "protocol": protocol.VERSION,
                "version": __version__,
                "python": platform.python_version(),
                "boot": kernel.boot_id(),
                "pid": os.getpid(),
                "left": left,
            }
        )

    def serve(self) -> None:
        """Read requests until the end, then undo everything that is not to be held."""
        lines = protocol.Lines()
        poll = select.poll()
        poll.register(0, select.POLLIN)
        stop = _stop_signal()
        poll.register(stop, select.POLLIN)
        goodbye = None
        while goodbye is None:
            ready = dict(poll.poll(self._lease_left() * 1000))
            if stop in ready or self._lease_left() == 0:
                break
            if 0 not in ready:
                continue
            data = os.read(0, 65536)
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
        if op == "ping":
            self.emit({**answer, "t": time.monotonic_ns()})
        elif op == "renew":
            self.emit(answer)
        elif op == "probe":
            injector = load(message["implementation"])
            support = injector.support(injector.Params(**message["params"]), Target(**message["target"]))
            self.emit({**answer, "reality": support.reality, "missing": list(support.missing)})
        elif op == "arm":
            job = Job.of(message)
            former = self._holders.get(job.fault)
            if self._records.holds(job.fault) or (former is not None and former.is_alive() and not former.refused):
                raise InjectorError(f"fault {job.fault} is held here already: an id is used once")
            self._holders[job.fault] = Holder(job, self._records, self.emit)
            self._holders[job.fault].start()
        elif op == "fire":
            self._holder(message).fire(message["at"])
            self.emit(answer)
        elif op == "disarm":
            if message["fault"] not in self._holders:
                raise InjectorError(f"no fault {message['fault']} was armed here")
            self._holders[message["fault"]].stop()  # one that has just ended by itself is disarmed as well
            self.emit(answer)
        else:
            raise InjectorError(f"this agent does not know the request {op!r}")

    def _holder(self, message: Message) -> Holder:
        holder = self._holders.get(message["fault"])
        if holder is None or not holder.is_alive():
            raise InjectorError(f"no fault {message['fault']} is armed here")
        return holder


def _stop_signal() -> int:
    """A descriptor that becomes readable at SIGTERM or SIGHUP: no asynchronous exceptions."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the controller, which then tells us
    signal.set_wakeup_fd(writer)
    return reader


def main() -> None:
    """Run one agent over stdin and stdout."""
    pipe = os.dup(1)
    os.dup2(2, 1)  # what an injector prints, or a program that it starts, goes to the log
    try:
        agent = Agent(Records(state_folder()), pipe)
        agent.greet()
    except (OSError, InjectorError) as error:
        os.write(pipe, protocol.encode({"event": "hello", "error": f"{error}"}))
        sys.exit(1)
    with real_time():  # an order that comes in time must not wait for a busy machine; arming has threads of its own
        agent.serve()


if __name__ == "__main__":
    main()

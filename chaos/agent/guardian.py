"""The agent's small twin: undoes what the agent held if the agent dies, or does not undo it by its deadline.

A process in a session of its own, started by ``guard``. It is told of every record before anything is changed for it,
and loads then whatever undoing it takes: later a full disk or a removed program must not stop it. It sleeps until its
agent ends or a deadline passes, and leaves when there is nothing more to undo. An agent that hangs (stopped, or inside
a call) over a deadline is killed, since it might go on in the middle of what is being undone.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from chaos.agent.locks import Locks
from chaos.agent.records import Held, Records, adopt
from chaos.agent.undo import load, relieve
from chaos.agent.wakeup import readable_at
from injectors.contract import InjectorError

_LONGEST_MESSAGE = 65536
_MOST_DESCRIPTORS = 64
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 5.0  # seconds between two attempts
_GIVE_UP = 600.0  # seconds of failing after which only the record is left, for `sweep`

Message = Dict[str, Any]


class Ward:
    """One record that is watched.

    Args:
        held: the record.
        locks: its devices.
    """

    def __init__(self, held: Held, locks: Locks) -> None:
        self.held = held
        self.locks = locks
        self.deadline_ns = held.record.deadline_ns or 0
        self.ours = False  # the agent leaves it to us: it has tried, and is not in the way
        self.acting = False
        self.ended = False  # undone, or given up
        self.undone = False

    def close(self) -> None:
        """Let the record go; the devices are free if it is undone."""
        self.held.close()
        if self.undone:
            self.locks.release()
        else:
            self.locks.close()


class Guardian:
    """One guardian.

    Args:
        agent: the socket to the agent, whose end says that the agent has died.
        process: pidfd of the agent; ``None`` if it has died already.
        records: the node's records: of those that were not handed over before the agent died, too.
    """

    def __init__(self, agent: socket.socket, process: Optional[int], records: Records) -> None:
        self._agent: Optional[socket.socket] = agent
        self._records = records
        self._process = process
        self._wards: Dict[str, Ward] = {}
        self._ended, self._end = os.pipe()
        os.set_blocking(self._end, False)
        self._poll = select.poll()
        self._poll.register(agent, select.POLLIN)
        self._poll.register(self._ended, select.POLLIN)
        # What a session or a terminal sends when it ends is not for us.
        ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE)
        self._told_to_end = readable_at((signal.SIGTERM,), ignored=ignored)
        self._poll.register(self._told_to_end, select.POLLIN)

    def serve(self) -> None:
        """Watch, until the agent and its faults have ended."""
        while self._agent is not None or self._wards:
            for fd, _ in self._poll.poll(self._patience()):
                if fd == self._ended:
                    os.read(self._ended, 4096)
                elif fd == self._told_to_end:  # the node goes down
                    os.read(fd, 4096)
                    self._undo_all()
                else:
                    self._hear()
            self._forget_ended()
            for ward in self._wards.values():
                if time.monotonic_ns() > ward.deadline_ns:
                    self._undo(ward)

    def _patience(self) -> Optional[float]:
        """Milliseconds to the next deadline; ``None`` where there is none to wait for."""
        waiting = [ward.deadline_ns for ward in self._wards.values() if not ward.acting]
        if not waiting:
            return None
        return max(0.0, (min(waiting) - time.monotonic_ns()) / 1e6) + 1

    def _hear(self) -> None:
        assert self._agent is not None
        try:
            message, fds = _receive(self._agent)
        except OSError:
            message, fds = None, []
        if message is None:
            self._poll.unregister(self._agent)
            self._agent.close()
            self._agent = None
            self._adopt_orphans()
            self._undo_all()
        elif message["op"] == "watch":
            self._answer(self._watch(message, fds))
        elif message["fault"] in self._wards:
            ward = self._wards[message["fault"]]
            if message["op"] == "yours":
                ward.ours = True
                self._undo(ward)
            elif not ward.acting:
                del self._wards[message["fault"]]
                ward.close()

    def _answer(self, message: Message) -> None:
        assert self._agent is not None
        with contextlib.suppress(OSError):  # it has died; the next poll says so
            self._agent.send(json.dumps(message).encode())

    def _watch(self, message: Message, fds: List[int]) -> Message:
        """Take a record over, and load what undoing it needs; whatever fails, the agent hears it and makes nothing."""
        locks = Locks(dict(zip(message["locks"], fds[1:])))
        try:
            held = adopt(message["path"], fds[0])
        except InjectorError as error:
            locks.close()
            return {"error": str(error)}
        ward = Ward(held, locks)
        try:
            load(held.record.implementation).residue(held.record)  # whatever is imported late is imported now
        except Exception as error:  # noqa: BLE001 - an injector of a site may raise anything
            ward.close()
            return {"error": f"the guardian cannot look at {held.record.kind}: {type(error).__name__}: {error}"}
        former = self._wards.pop(held.record.fault, None)
        if former is not None:  # the agent was not sure that we had it
            former.close()
        self._wards[held.record.fault] = ward
        return {"watching": held.record.fault}

    def _adopt_orphans(self) -> None:
        """Take over what nobody holds: the agent may have died between our predecessor's end and telling us."""
        for found in self._records.survey():
            held = None if found.record is None or found.held else Records.take(found)
            if held is not None and held.record.fault not in self._wards:
                self._wards[held.record.fault] = Ward(held, Locks({}))

    # -- undoing -----------------------------------------------------------------------------------------------------

    def _undo_all(self) -> None:
        for ward in self._wards.values():
            self._undo(ward)

    def _undo(self, ward: Ward) -> None:
        if not ward.acting:
            ward.acting = True
            threading.Thread(target=self._until_undone, args=(ward,), daemon=True).start()

    def _until_undone(self, ward: Ward) -> None:
        """Undo one fault, as often as it takes: none waits for another."""
        end = time.monotonic() + _GIVE_UP
        for pause in _pauses():
            left = relieve(ward.held, (0.0,))
            ward.undone = not left
            if ward.undone or time.monotonic() > end:
                break
            for what in left:
                print(f"guardian {os.getpid()}: {what}", file=sys.stderr, flush=True)
            if not ward.ours and time.monotonic_ns() > ward.deadline_ns:
                self._fence()
            time.sleep(pause)
        ward.ended = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._end, b"!")

    def _fence(self) -> None:
        """Kill the agent: it has missed a deadline, and is in the way."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def _forget_ended(self) -> None:
        for fault, ward in list(self._wards.items()):
            if ward.ended:
                del self._wards[fault]
                ward.close()


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(_LONGEST_PAUSE, pause * 2)


def _receive(sock: socket.socket) -> Tuple[Optional[Message], List[int]]:
    """One message and its descriptors; ``None`` at the end."""
    fds = array.array("i")
    space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * fds.itemsize)
    data, ancillary, _, _ = sock.recvmsg(_LONGEST_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return (json.loads(data) if data else None), list(fds)


def main() -> None:
    """``python -c "from chaos.agent import guardian; guardian.main()" SOCKET AGENT STATE``.

    SOCKET is a descriptor, AGENT the agent's process id, STATE the node's state folder.
    """
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        process: Optional[int] = os.pidfd_open(int(sys.argv[2]))  # it waits for our first answer, if it lives
    except ProcessLookupError:
        process = None
    # When memory runs out, rather anything else than the one that undoes; not everybody may ask for that.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("-900")
    Guardian(sock, process, Records(sys.argv[3])).serve()

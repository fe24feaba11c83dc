"""The agent's side of its guardian: started when there is something to watch, started again if it is killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from typing import Callable, Dict, List, Optional, Tuple

from chaos.agent.locks import Locks
from chaos.agent.records import Held
from injectors.contract import InjectorError

_START = 15.0  # seconds for a Python to start on a busy machine
_START_IN_SCOPE = 2.0  # seconds for systemd to answer as well; then it is done without
_ANSWER = 3.0  # seconds for one that runs
_ATTEMPTS = 3
_LARGEST_LOG = 1_000_000  # bytes
_SCRIPT = "from chaos.agent import guardian; guardian.main()"


class Guard:
    """Keeps a guardian at work for all records that are watched.

    Args:
        state: the node's state folder; what a guardian has to tell is written into its ``guardian.log``.
        on_failure: called when no guardian can be started any more although there is something to watch.
    """

    def __init__(self, state: str, on_failure: Callable[[str], None]) -> None:
        self._state = state
        self._log = os.path.join(state, "guardian.log")
        self._on_failure = on_failure
        self._talking = threading.Lock()  # while one is started or asked: whoever ends a fault must not wait for that
        self._changing = threading.Lock()
        self._guardian: Optional[_Running] = None
        self._watched: Dict[str, Tuple[Held, Locks]] = {}

    @property
    def pid(self) -> Optional[int]:
        """The process id of the guardian at work."""
        running = self._guardian
        return None if running is None else running.process.pid

    def watch(self, held: Held, locks: Locks) -> None:
        """Have a record watched; returns when the guardian has it, and everything that undoing it takes.

        Raises:
            InjectorError: there is no guardian, or it cannot undo this.
        """
        fault = held.record.fault
        with self._changing:
            self._watched[fault] = (held, locks)
        try:
            with self._talking:
                self._deliver(fault)
        except BaseException:
            with self._changing:
                self._watched.pop(fault, None)
            raise

    def forget(self, fault: str) -> None:
        """A fault has ended: nothing is left of it."""
        self._let_go("forget", fault)

    def leave(self, fault: str) -> None:
        """We could not undo a fault: the guardian goes on trying, now and after us."""
        self._let_go("yours", fault)

    def _let_go(self, op: str, fault: str) -> None:
        """Tell, and wait for nothing: one that hangs finds out by itself that the record has gone."""
        with self._changing:
            running = self._guardian
            if self._watched.pop(fault, None) is not None and running is not None:
                with contextlib.suppress(OSError):  # it has died, or hangs: the record is left, as it would be after it
                    running.socket.send(json.dumps({"op": op, "fault": fault}).encode(), socket.MSG_DONTWAIT)

    def _deliver(self, fault: str) -> None:
        tried = False  # a scope, which is done once: the next may suffer as the first did
        failed: Optional[OSError] = None
        for _ in range(_ATTEMPTS):
            try:
                if self._guardian is None:
                    scope = [] if tried else _scope()
                    tried = True
                    self._start(scope)
                self._hand_over(fault)
            except OSError as error:  # it has died meanwhile, hangs, or cannot be started
                print(f"a guardian fails: {error}", file=sys.stderr)
                failed = error
                self._drop()
            else:
                return
        raise InjectorError(f"no guardian stays alive: {failed}; see {self._log}")

    def _hand_over(self, fault: str) -> None:
        running = self._guardian
        assert running is not None
        with self._changing:  # its descriptors are ours as long as it is watched
            if fault not in self._watched:
                return
            held, locks = self._watched[fault]
            message = {"op": "watch", "path": held.path, "locks": locks.paths}
            fds = [held.lock, *locks.descriptors]
            socket.send_fds(running.socket, [json.dumps(message).encode()], fds, socket.MSG_DONTWAIT)
        data = running.socket.recv(65536)
        if not data:
            raise ConnectionResetError("it has died")
        running.socket.settimeout(_ANSWER)
        answer = json.loads(data)
        if "error" in answer:
            raise InjectorError(answer["error"])

    def _start(self, scope: List[str]) -> None:
        log = self._log_file()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_START_IN_SCOPE if scope else _START)
        try:
            process = subprocess.Popen(
                [
                    *scope,
                    sys.executable,
                    "-S",
                    "-c",
                    _SCRIPT,
                    str(theirs.fileno()),
                    str(os.getpid()),
                    self._state,
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            if log >= 0:
                os.close(log)
        running = _Running(ours, process)
        with self._changing:
            self._guardian = running
        threading.Thread(target=self._attend, args=(running,), name="guardian", daemon=True).start()

    def _log_file(self) -> int:
        """Never the agent's own stderr: an SSH channel stays open as long as anybody has it."""
        try:
            fd = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if os.fstat(fd).st_size > _LARGEST_LOG:
                os.ftruncate(fd, 0)
        except OSError:
            return subprocess.DEVNULL
        return fd

    def _drop(self) -> None:
        """Part with a guardian that is of no use: if it only hung, it would take our silence for our death."""
        with self._changing:
            running, self._guardian = self._guardian, None
        if running is not None:
            running.process.kill()
            running.socket.close()

    def _attend(self, running: _Running) -> None:
        """Wait for a guardian's end, and start another for what is still watched."""
        running.process.wait()
        with self._talking:
            if self._guardian is running:
                self._drop()
            with self._changing:
                watched = list(self._watched)
            for fault in watched:
                try:
                    self._deliver(fault)
                except InjectorError as error:
                    if fault in self._watched:  # else it has ended meanwhile
                        self._on_failure(str(error))


class _Running:
    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.socket = sock
        self.process = process


def _scope() -> List[str]:
    """Where systemd is, a scope of its own: what ends a session's processes then passes the guardian by."""
    runner = shutil.which("systemd-run")
    if runner is None or not os.path.isdir("/run/systemd/system"):
        return []
    whose = [] if os.geteuid() == 0 else ["--user"]
    return [runner, *whose, "--scope", "--quiet", "--collect", f"--unit=chaos-guardian-{uuid.uuid4()}"]

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

_PATIENCE = 15.0  # seconds; a busy machine takes a while to start a Python
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
        self._lock = threading.Lock()
        self._socket: Optional[socket.socket] = None
        self._watched: Dict[str, Tuple[Held, Locks]] = {}
        self.pid: Optional[int] = None

    def watch(self, held: Held, locks: Locks) -> None:
        """Have a record watched; returns when the guardian has it, and everything that undoing it takes.

        Raises:
            InjectorError: there is no guardian, or it cannot undo this.
        """
        fault = held.record.fault
        with self._lock:
            self._watched[fault] = (held, locks)
            try:
                self._deliver(held, locks)
            except BaseException:
                del self._watched[fault]
                raise

    def _deliver(self, held: Held, locks: Locks) -> None:
        for attempt in range(_ATTEMPTS):
            if self._socket is None:
                self._start(_scope() if attempt == 0 else [])
            try:
                self._hand_over(held, locks)
            except OSError:  # it has died meanwhile
                self._drop()
            else:
                return
        raise InjectorError(f"the guardian dies again and again: see {self._log}")

    def forget(self, fault: str) -> None:
        """A fault has ended: nothing is left of it."""
        self._let_go("forget", fault)

    def leave(self, fault: str) -> None:
        """We could not undo a fault: the guardian goes on trying, now and after us."""
        self._let_go("yours", fault)

    def _let_go(self, op: str, fault: str) -> None:
        with self._lock:
            if self._watched.pop(fault, None) is not None and self._socket is not None:
                with contextlib.suppress(OSError):  # it has died: the record is left, as it would be after it
                    self._socket.send(json.dumps({"op": op, "fault": fault}).encode())

    def _hand_over(self, held: Held, locks: Locks) -> None:
        assert self._socket is not None
        message = {"op": "watch", "path": held.path, "locks": locks.paths}
        socket.send_fds(self._socket, [json.dumps(message).encode()], [held.lock, *locks.descriptors])
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionResetError
        answer = json.loads(data)
        if "error" in answer:
            raise InjectorError(answer["error"])

    def _start(self, scope: List[str]) -> None:
        log = self._log_file()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_PATIENCE)
        try:
            process = subprocess.Popen(
                [*scope, sys.executable, "-S", "-c", _SCRIPT, str(theirs.fileno()), str(os.getpid()), self._state],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except OSError as error:
            ours.close()
            raise InjectorError(f"no guardian starts: {error}") from error
        finally:
            theirs.close()
            if log >= 0:
                os.close(log)
        self._socket, self.pid = ours, process.pid
        threading.Thread(target=self._attend, args=(process,), name="guardian", daemon=True).start()

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
        if self._socket is not None:
            self._socket.close()
        self._socket = self.pid = None

    def _attend(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for a guardian's end, and start another for what is still watched."""
        process.wait()
        with self._lock:
            if self.pid == process.pid:
                self._drop()
            watched = list(self._watched)
        for fault in watched:
            with self._lock:
                if fault not in self._watched:  # it has ended meanwhile
                    continue
                try:
                    self._deliver(*self._watched[fault])
                except InjectorError as error:
                    self._on_failure(str(error))


def _scope() -> List[str]:
    """Where systemd is, a scope of its own: what ends a session's processes then passes the guardian by."""
    runner = shutil.which("systemd-run")
    if runner is None or not os.path.isdir("/run/systemd/system"):
        return []
    whose = [] if os.geteuid() == 0 else ["--user"]
    return [runner, *whose, "--scope", "--quiet", "--collect", f"--unit=chaos-guardian-{uuid.uuid4()}"]

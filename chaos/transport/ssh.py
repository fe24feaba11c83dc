"""An agent on a node that is reached by SSH, programs that run there for a moment, and files that are followed."""

from __future__ import annotations

import contextlib
import errno
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from chaos.agent.protocol import Message
from chaos.inventory.access import Access, SecretError
from chaos.transport import remote_run, remote_tail
from chaos.transport.bundle import AGENT, ISOLATED, bundle, one_line
from chaos.transport.pipe import AgentClient, AgentError, Pipe
from chaos.transport.ssh_connection import CHANNEL, Connection, Connections

__all__ = ["Completed", "Connection", "Connections", "Tail", "run", "start", "start_module", "tail"]

START = 60.0  # seconds for an agent to start, with its bundle sent over a slow line
_WRITE = 10.0  # seconds for a node to take what is written
_GRACE = 10.0  # seconds after its limit within which a program's end must have been told
_OVER = 124  # as remote_run says it
_LARGEST_OUTPUT = 64 << 20  # bytes on each stream of a program
_LONGEST_LINE = 1 << 20  # bytes of a file that is followed
# Bytes under way in a channel that follows a file. Whatever else comes from this node waits for no more than these.
_TAIL_WINDOW = 64 << 10
_CHUNK = 65536
_KEPT = 4096  # bytes of stderr for messages
_SU_ASKS = b"Password: "
_SIGNAL = "import os,sys;os.kill(int(sys.argv[1]),int(sys.argv[2]))"


@dataclass(frozen=True)
class Completed:
    """A program that has ended.

    Attributes:
        code: its exit status; 128 + n where signal n has ended it.
        stdout, stderr: what it has written.
    """

    code: int
    stdout: bytes
    stderr: bytes


def start(
    connection: Connection,
    log: Path | None,
    on_event: Callable[[Message], None],
    *,
    looks: bool = False,
    extra: tuple[str, ...] = (),
) -> AgentClient:
    """Start an agent on a node, as root where its access says how.

    Args:
        log: the file for its stderr.
        looks: it changes nothing: what is left is told, and stays.
        extra: packages or modules that its bundle has beside ours.

    Raises:
        AgentError: it does not start; says why.
    """
    with _begun(connection, AGENT, ["--look"] if looks else [], log, extra) as program:
        return program.client(on_event)


def start_module(connection: Connection, module: str, log: Path | None) -> Pipe:
    """Start another module of the agent's bundle on a node, as the user that logs in, with a channel of its own.

    What it says is under way in small amounts only, so that nothing else on the connection waits for it.

    Args:
        log: the file for its stderr.

    Raises:
        AgentError: it does not start; says why.
    """
    with _begun(connection, module, [], log, root=False, window=_TAIL_WINDOW) as program:
        return Pipe(program.stdin, program.stdout, program)


@contextlib.contextmanager
def _begun(
    connection: Connection,
    module: str,
    options: Sequence[str],
    log: Path | None,
    extra: tuple[str, ...] = (),
    *,
    root: bool = True,
    window: int | None = None,
) -> Iterator[_Program]:
    """A module that runs, with its bundle; closed if what follows fails."""
    sent = bundle(extra)
    argv = sent.command(connection.access.python, options, module=module)
    program = _Program(connection, argv, root=root, log=log, window=window)
    try:
        program.deadline = time.monotonic() + START
        sent.deliver(connection.name, program.stdin, program.stdout)
        program.deadline = None
        yield program
    except AgentError as error:
        program.close()
        said = program.last_words()
        raise AgentError(f"{error}{f'; it said {said!r}' if said else ''}") from error
    except BaseException:
        program.close()
        raise


def run(connection: Connection, argv: Sequence[str], timeout: float, *, root: bool = False) -> Completed:
    """Run a program on a node and wait for its end. No shell reads its arguments, and its input is empty.

    Args:
        timeout: seconds; then it is killed, with everything that it has started. What it leaves running when it
            ends by itself is killed as well.
        root: as root, in the way that the node's access says.

    Raises:
        AgentError: it cannot be run, does not end in time, or says more than 64 MiB.
    """
    what = f"`{shlex.join(argv)}` on {connection.name}"
    began = time.monotonic()
    ready = f"chaos-{secrets.token_hex(8)}"
    keeper = [connection.access.python, *ISOLATED, "-c", one_line(remote_run), ready, str(timeout), *argv]
    with contextlib.closing(_Program(connection, keeper, root=root)) as program:
        program.deadline = began + timeout + _GRACE
        output = bytearray()
        errors = program.keep_errors()
        try:
            program.begin(ready, what)
            while data := program.read(_CHUNK):
                output += data
                if len(output) > _LARGEST_OUTPUT:
                    raise AgentError(f"{what} says more than {_LARGEST_OUTPUT >> 20} MiB: it was ended")
            code = program.wait(max(0.0, program.deadline - time.monotonic()))
        except OSError as error:
            raise AgentError(f"{what}: {error.strerror}") from error
    if code is None or (code == _OVER and time.monotonic() >= began + timeout):
        raise AgentError(f"{what} did not end within {timeout:g} s: it was killed, with whatever it had started")
    if code < 0:
        raise AgentError(f"{what} has told no exit status: {connection.fate}")
    return Completed(code, bytes(output), bytes(errors).partition(f"\n{ready}\n".encode())[2])


class Tail:
    """A file on a node that is followed; ``tail`` makes it.

    Attributes:
        ended: set when no line comes any more.
        error: what has ended it, or ``None`` where ``stop`` did.
    """

    def __init__(self, program: _Program, on_line: Callable[[bytes], None]) -> None:
        self.ended = threading.Event()
        self.error: str | None = None
        self._stopped = False
        self._program = program
        self._on_line = on_line
        self._thread = threading.Thread(target=self._follow, name=f"tail {program.name}", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        rest = bytearray()
        skipping = False
        try:
            while data := self._program.read(_CHUNK):
                *lines, last = data.split(b"\n")
                for line in lines:
                    rest += line
                    if not skipping:
                        self._on_line(bytes(rest))
                    rest.clear()
                    skipping = False
                if not skipping:
                    rest += last
                if len(rest) > _LONGEST_LINE:
                    rest.clear()
                    skipping = True
            why = self._program.last_words() or "its follower has ended"
        except OSError as error:
            why = error.strerror or str(error)
        if not self._stopped:
            self.error = why
        self.ended.set()

    def stop(self) -> None:
        """End it; a line that is on its way may be lost. Idempotent."""
        self._stopped = True
        self._program.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(_WRITE)


def tail(connection: Connection, path: str, on_line: Callable[[bytes], None], *, root: bool = False) -> Tail:
    """Follow a file on a node: every line that is completed after this has returned.

    The file may be missing, replaced or cut short at any time. What is under way is bounded: a reader that is slow
    slows the follower down, and nothing else on the connection. A line of more than 1 MiB is left out.

    Args:
        on_line: called with each line, without its end, on a thread of its own.
        root: read it as root.

    Raises:
        AgentError: the follower cannot be started.
    """
    ready = f"chaos-{secrets.token_hex(8)}"
    argv = [connection.access.python, *ISOLATED, "-c", one_line(remote_tail), ready, path]
    program = _Program(connection, argv, root=root, window=_TAIL_WINDOW)
    program.deadline = time.monotonic() + CHANNEL
    try:
        program.begin(ready, f"the follower of {path} on {connection.name}")
    except BaseException:
        program.close()
        raise
    program.deadline = None
    return Tail(program, on_line)


class _Bell:
    """What a channel's two buffers ring when something comes. Each of them also believes that it may silence it."""

    def __init__(self) -> None:
        self.rung = threading.Event()
        self.set = self.rung.set

    def clear(self) -> None:
        """Only the reader knows when there is nothing in either."""


class _Program:
    """A program on a node, its input and output, without a thread: whoever reads its output has its stderr heeded.

    Args:
        argv: the program; no shell reads it.
        root: as root, in the way that the node's access says.
        log: the file for its stderr.
        window: bytes of its output that may be under way.
    """

    def __init__(
        self,
        connection: Connection,
        argv: Sequence[str],
        *,
        root: bool,
        log: Path | None = None,
        window: int | None = None,
    ) -> None:
        self.name = connection.name
        self.deadline: float | None = None
        self._connection = connection
        self._root = root
        self._pid: int | None = None
        self._bell = _Bell()
        self._errors: bytearray | None = None
        self._last = bytearray()
        self._answer = _Answer(connection.access, connection.name) if root else None
        self._channel = connection.session(window)
        self._log = None if log is None else log.open("ab", buffering=0)
        self._channel.in_buffer.set_event(self._bell)
        self._channel.in_stderr_buffer.set_event(self._bell)
        self._channel.settimeout(_WRITE)
        self.stdin, self.stdout = _Input(self), _Output(self)
        patience = threading.Timer(CHANNEL, self._channel.close)
        patience.daemon = True
        patience.start()
        try:
            self._channel.exec_command(_command(argv, self._answer))
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.close()
            raise AgentError(f"nothing can be run on {self.name}: {self._fate(error)}") from error
        finally:
            patience.cancel()

    def _fate(self, error: BaseException) -> str:
        return str(error) if self._connection.alive else self._connection.fate

    def client(self, on_event: Callable[[Message], None]) -> AgentClient:
        """The agent that it has become."""
        self._answer = None
        client = AgentClient(self.name, self.stdin, self.stdout, self, on_event)
        self._pid = client.hello["pid"]
        return client

    def begin(self, ready: str, what: str) -> None:
        """Read until it says that it begins: what a login script has to say comes before.

        Raises:
            AgentError: it does not begin.
        """
        seen = bytearray()
        mark = f"\n{ready}\n".encode()
        while not seen.endswith(mark):
            try:
                data = self.read(1)
            except OSError as error:
                raise AgentError(f"{what} does not start: {error.strerror}") from error
            if not data or len(seen) > _CHUNK:
                said = self.last_words() or seen[-200:].decode(errors="replace").strip() or "nothing was said"
                raise AgentError(f"{what} does not start: {said}")
            seen += data
        self._answer = None
        self._last.clear()

    def keep_errors(self) -> bytearray:
        """Keep all of its stderr, in here."""
        self._errors = bytearray()
        return self._errors

    def read(self, size: int) -> bytes:
        """Some of its output; nothing at the end.

        Raises:
            OSError: the connection has gone, or nothing came until the deadline.
            AgentError: its stderr says that it will not do.
        """
        channel = self._channel
        while True:
            self._bell.rung.clear()
            ended = channel.eof_received or channel.closed
            while channel.recv_stderr_ready():
                self._heed(channel.recv_stderr(_CHUNK))
            if channel.recv_ready():
                return bytes(channel.recv(size))
            if ended:
                if not channel.eof_received and not self._connection.alive:
                    raise ConnectionResetError(errno.ECONNRESET, self._connection.fate)
                return b""
            left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            if not self._bell.rung.wait(left):
                raise TimeoutError(errno.ETIMEDOUT, "nothing came in time")

    def _heed(self, said: bytes) -> None:
        if self._answer is not None:
            said = self._answer.give(said, self.write)
        self._last = (self._last + said)[-_KEPT:]
        if self._errors is not None and len(self._errors) + len(said) <= _LARGEST_OUTPUT:
            self._errors += said
        if self._log is not None:
            with contextlib.suppress(OSError):  # a full disk here is no reason to let go of a node
                self._log.write(said)

    def last_words(self) -> str:
        """The last lines of its stderr."""
        lines = self._last.decode(errors="replace").strip().splitlines()
        return "; ".join(lines[-3:])

    def write(self, data: bytes | memoryview) -> int:
        """Give it input.

        Raises:
            OSError: it takes none in time, or has gone.
        """
        try:
            return int(self._channel.send(data))
        except TimeoutError as error:
            raise TimeoutError(errno.ETIMEDOUT, f"it takes no input for {_WRITE:g} s") from error
        except (OSError, paramiko.SSHException, EOFError) as error:
            raise ConnectionResetError(errno.ECONNRESET, self._fate(error)) from error

    def end_input(self) -> None:
        """It finds its input at an end."""
        try:
            self._channel.shutdown_write()
        except (paramiko.SSHException, EOFError) as error:
            raise ConnectionResetError(errno.ECONNRESET, self._fate(error)) from error

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit status; ``None`` when the time is over, -1 where none was told."""
        return int(self._channel.exit_status) if self._channel.status_event.wait(timeout) else None

    def signal(self, number: int) -> None:
        """Send it a signal, through a program of its own: servers that run as root forward none.

        Raises:
            OSError: the node cannot be told.
        """
        if self._channel.status_event.is_set() or self._pid is None:
            return
        argv = [self._connection.access.python, *ISOLATED, "-c", _SIGNAL, str(self._pid), str(number)]
        try:
            run(self._connection, argv, _WRITE, root=self._root)
        except AgentError as error:
            raise ConnectionError(errno.ECONNRESET, str(error)) from error

    def close(self) -> None:
        """Part with it: its input ends, and it can write no more."""
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
            self._channel.close()
        if self._log is not None:
            self._log.close()
            self._log = None


class _Input:
    def __init__(self, program: _Program) -> None:
        self.write, self.close = program.write, program.end_input


class _Output:
    def __init__(self, program: _Program) -> None:
        self.read, self.close = program.read, program.close


class _Answer:
    """The password that becoming root takes: given when it is asked for, and only then, since who is not asked would
    find it in the agent's input.

    Raises:
        AgentError: the password cannot be had.
    """

    def __init__(self, access: Access, name: str) -> None:
        self.how = access.become
        self.mark = _SU_ASKS if self.how == "su" else f"chaos-{secrets.token_hex(8)}:".encode()
        self._name = name
        self._seen = b""
        self._given = False
        try:
            self.secret = None if access.become_password is None else access.become_password.value()
        except SecretError as error:
            raise AgentError(f"{name}: no {self.how} without its password: {error}") from None

    def give(self, said: bytes, write: Callable[[bytes], Any]) -> bytes:
        """Look for the question in what was said.

        Returns:
            What was said beside it.

        Raises:
            AgentError: there is no answer, or the one given was wrong.
        """
        before, asked, after = (self._seen + said).partition(self.mark)
        if not asked:
            self._seen = before[-len(self.mark) :]
            return said
        self._seen = b""
        if self.secret is None:
            raise AgentError(f"{self.how} of {self._name} asks for a password: name it as `become_password`")
        if self._given:
            raise AgentError(f"{self.how} of {self._name} refuses the password that `become_password` gives")
        self._given = True
        write(self.secret.encode() + b"\n")
        return after


def _command(argv: Sequence[str], answer: _Answer | None) -> str:
    """A line for the login shell, whichever it is: nothing but quoted words.

    The agent learns in ``CHAOS_CONTROL`` from where its controller speaks to it; sudo makes the environment anew, so
    that it is set behind it.
    """
    control = 'CHAOS_CONTROL="${SSH_CONNECTION%% *}"'
    if answer is None or answer.how == "none":
        script = f'export {control}; exec "$@"'
    elif answer.how == "sudo":
        asks = "-n" if answer.secret is None else f"-S -p {answer.mark.decode()}"
        script = f'exec sudo {asks} -- env {control} "$@"'
    else:
        inner = 'unset LC_ALL; exec "$@"'
        script = f"export {control} LC_ALL=C; exec su -s /bin/sh -c '{inner}' -- root sh \"$@\""
    return "exec " + shlex.join(["sh", "-c", script, "sh", *argv])

"""Connections to nodes by SSH: one a node, kept, its host key checked, no wait without an end.

The times below bound every wait: for TCP, for the greeting and the key exchange, for each attempt to log in, and for a
channel. After that, a peer of which nothing is heard for ``KEEP_ALIVE`` seconds is asked whether it is there, and
given up ``ANSWER`` seconds later: whatever waits for it fails then.
"""

from __future__ import annotations

import base64
import errno
import logging
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
from paramiko.common import cMSG_GLOBAL_REQUEST

from chaos.inventory.access import Access, SecretError
from chaos.transport import known_hosts
from chaos.transport.pipe import AgentError
from chaos.transport.ssh_route import Route, routes

CONNECT = 10.0  # seconds for TCP
GREETING = 15.0  # seconds for the peer's greeting and the key exchange
LOGIN = 15.0  # seconds for each attempt to log in
CHANNEL = 15.0  # seconds for a channel, and for what starts in it
KEEP_ALIVE = 3.0
ANSWER = 5.0
_AGENT = 5.0  # seconds for an answer of the ssh-agent
# Authenticated encryption first: the other ciphers need a second pass, in Python, over each packet.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")

# What paramiko has to say reaches the user as our own error; without this, Python would print it, with tracebacks.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _Wire:
    """A TCP socket, or a channel through a jump host, below a transport; fails when the peer has fallen silent."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._heard = time.monotonic()
        self._asked: float | None = None  # when it was asked, while it has not answered
        self._stuck: float | None = None  # since when it takes nothing
        self.ask: Any = None  # asks the peer whether it is there

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._sock.recv(size)
        except TimeoutError:
            now = time.monotonic()
            if self._asked is not None:
                self._give_up_after(now - self._asked)
            elif self.ask is not None and now - self._heard > KEEP_ALIVE:
                self._asked = now
                self.ask()
            raise
        self._heard, self._asked = time.monotonic(), None
        return data

    def send(self, data: bytes) -> int:
        try:
            sent: int = self._sock.send(data)
        except TimeoutError:
            now = time.monotonic()
            self._stuck = self._stuck or now
            self._give_up_after(now - self._stuck)
            raise
        self._stuck = None
        return sent

    @staticmethod
    def _give_up_after(silent: float) -> None:
        if silent > ANSWER:
            # Not ETIMEDOUT: that would make a TimeoutError, after which a transport just tries again.
            raise OSError(errno.ECONNABORTED, f"it has been silent for {KEEP_ALIVE + ANSWER:g} s")

    def settimeout(self, seconds: float) -> None:
        self._sock.settimeout(seconds)

    def getpeername(self) -> Any:
        return self._sock.getpeername()

    def close(self) -> None:
        self._sock.close()

    @property
    def _closed(self) -> bool:  # paramiko looks at it
        return bool(self._sock._closed)


class _Transport(paramiko.Transport):  # type: ignore[misc]
    """A transport that asks its peer whether it is there, with a question that must be answered (RFC 4254, 4)."""

    def ask(self) -> None:
        if self.clear_to_send.is_set():  # else keys are being exchanged
            message = paramiko.Message()
            message.add_byte(cMSG_GLOBAL_REQUEST)
            message.add_string("keepalive@openssh.com")
            message.add_boolean(True)
            self._send_user_message(message)


class _SshAgent(paramiko.agent.AgentSSH):  # type: ignore[misc]
    """The keys of a running ssh-agent, which answers in time or is done without."""

    def __init__(self, path: str) -> None:
        super().__init__()
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(_AGENT)
        try:
            sock.connect(path)
            self._connect(sock)
        except (OSError, paramiko.SSHException):
            sock.close()
            raise

    def close(self) -> None:
        self._close()


class Connection:
    """One connection; ``Connections.to`` makes it.

    Args:
        name: the node, for messages.
        route: its last hop.
        via: the connection to the jump host.

    Raises:
        AgentError: it cannot be made; says why, and what to do about it.
    """

    def __init__(self, name: str, route: Route, via: Connection | None) -> None:
        self.name = name
        self.access = route.access
        self._where = f"{name} ({route})"
        self._fate = _reason(EOFError())
        wire = _Wire(_dial(route, self._where, via))
        self._transport = _Transport(wire)
        try:
            self._greet(route)
            _Login(self._transport, route, self._where).attempt()
        except BaseException as error:
            self._transport.close()
            wire.close()  # the transport leaves it open where its thread has not begun
            if isinstance(error, (paramiko.SSHException, OSError, EOFError)):
                raise AgentError(f"{self._where}: {_reason(error)}") from error
            raise
        wire.ask = self._transport.ask

    def _greet(self, route: Route) -> None:
        """The key exchange, and the host key."""
        transport = self._transport
        transport.banner_timeout = transport.handshake_timeout = GREETING
        transport.auth_timeout = LOGIN
        transport.channel_timeout = CHANNEL
        known = known_hosts.entries(route.known_as, route.known_hosts)
        options = transport.get_security_options()
        wanted = {each for entry in known if not entry.marker for each in _algorithms(entry.kind)}
        options.key_types = sorted(options.key_types, key=lambda each: each not in wanted)
        options.ciphers = (*_CIPHERS, *(each for each in options.ciphers if each not in _CIPHERS))
        transport.start_client(timeout=GREETING)
        try:
            key = transport.get_remote_server_key()
        except paramiko.SSHException:
            raise AgentError(f"{self._where} does not greet within {GREETING:g} s: is it an SSH server?") from None
        presented = key.get_name(), key.asbytes()
        known_hosts.check(self._where, route.known_as, presented, known, route.known_hosts)

    @property
    def alive(self) -> bool:
        """Whether it can be used."""
        return bool(self._transport.is_active())

    @property
    def fate(self) -> str:
        """What ended it."""
        told = self._transport.get_exception()  # once
        if told is not None:
            self._fate = _reason(told)
        return self._fate

    def session(self, window: int | None = None) -> paramiko.Channel:
        """A new channel for a program.

        Args:
            window: bytes that may be under way in it; bounds what others on this connection wait for.

        Raises:
            AgentError: there is none.
        """
        try:
            return self._transport.open_session(window_size=window, timeout=CHANNEL)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise AgentError(f"{self._where} opens no channel: {_reason(error)}") from error

    def forward(self, host: str, port: int) -> paramiko.Channel:
        """A channel to where this host can connect to."""
        return self._transport.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=CONNECT)

    def close(self) -> None:
        """End it, and everything that runs over it."""
        self._transport.close()


class Connections:
    """The connections of one controller: one a host, kept, and shared by all that is reached over it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._making: defaultdict[Access, threading.Lock] = defaultdict(threading.Lock)
        self._kept: dict[Access, Connection] = {}

    def to(self, access: Access, name: str) -> Connection:
        """The connection to a node; made where there is none any more. For any number of threads.

        Args:
            name: of the node, for messages.

        Raises:
            AgentError: it cannot be made.
        """
        via: Connection | None = None
        hops = routes(access)
        for number, route in enumerate(hops, 1):
            called = name if number == len(hops) else f"the jump host of {name}"
            with self._lock:
                making = self._making[route.access]
            with making:
                with self._lock:
                    kept = self._kept.get(route.access)
                if kept is None or not kept.alive:
                    kept = Connection(called, route, via)
                    with self._lock:
                        self._kept[route.access] = kept
                via = kept
        assert via is not None
        return via

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            kept = list(self._kept.values())
            self._kept.clear()
        for connection in kept:
            connection.close()


def _dial(route: Route, where: str, via: Connection | None) -> Any:
    try:
        if via is not None:
            return via.forward(route.host, route.port)
        sock = socket.create_connection((route.host, route.port), CONNECT)
    except (paramiko.SSHException, OSError, EOFError) as error:
        how = "" if via is None else f" from {via.name}"
        raise AgentError(f"{where} cannot be reached{how}: {_reason(error)}") from error
    # Without it, small requests wait for the acknowledgement of those before (44 ms instead of 2.4).
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _algorithms(kind: str) -> tuple[str, ...]:
    return ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return "nothing came in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, EOFError):
        return "the connection was closed"
    return str(error) or type(error).__name__


class _Login:
    """One login: by key, by the ssh-agent's keys, by password, in this order."""

    def __init__(self, transport: paramiko.Transport, route: Route, where: str) -> None:
        self._transport = transport
        self._route = route
        self._where = where
        self._tried: list[str] = []
        self._accepted: list[str] = []

    def attempt(self) -> None:
        access = self._route.access
        try:
            if access.password is None or access.key is not None:
                for what, key in self._keys():
                    if self._is_let_in(what, lambda k=key: self._transport.auth_publickey(self._route.user, k)):
                        return
                    if self._accepted and "publickey" not in self._accepted:
                        break
            if access.password is not None:
                secret = access.password.value()
                if self._is_let_in("the password", lambda: self._transport.auth_password(self._route.user, secret)):
                    return
        except SecretError as error:
            raise AgentError(f"{self._where}: {error}") from None
        takes = f"; it takes {', '.join(self._accepted)}" if self._accepted else ""
        tried = ", ".join(self._tried) or "nothing: there is no key, and no ssh-agent with one"
        raise AgentError(f"{self._where} does not let us in. Tried: {tried}{takes}")

    def _is_let_in(self, what: str, ask: Any) -> bool:
        self._tried.append(what)
        try:
            more = ask()
        except paramiko.BadAuthenticationType as error:
            self._accepted = list(error.allowed_types)
            return False
        except paramiko.AuthenticationException:
            if not self._transport.is_active():
                raise
            return False
        if more:
            raise AgentError(f"{self._where} wants {' or '.join(more)} after {what}: this is not supported")
        return True

    def _keys(self) -> Iterator[tuple[str, paramiko.PKey]]:
        """Of the files, where the ssh-agent has one of them the agent's, and then the agent's others."""
        agent = self._ssh_agent()
        try:
            held = {} if agent is None else {key.asbytes(): key for key in agent.get_keys()}
            for path in self._route.keys:
                blob = _public_half(path)
                if blob in held:
                    yield f"{path} (by the ssh-agent)", held.pop(blob)
                elif path.exists() or self._route.access.key is not None:
                    loaded = self._load(path)
                    if loaded is not None:
                        held.pop(loaded.asbytes(), None)
                        yield str(path), loaded
            if not self._route.only_these:
                for key in held.values():
                    yield f"the ssh-agent's {key.comment or key.get_name()}", key
        finally:
            if agent is not None:
                agent.close()

    def _ssh_agent(self) -> _SshAgent | None:
        if self._route.agent is None:
            return None
        try:
            return _SshAgent(self._route.agent)
        except (OSError, paramiko.SSHException) as error:
            self._tried.append(f"the ssh-agent ({_reason(error)})")
            return None

    def _load(self, path: Path) -> paramiko.PKey | None:
        secret = self._route.access.passphrase
        own = self._route.access.key is not None
        try:
            return paramiko.PKey.from_path(path, None if secret is None or not own else secret.value().encode())
        except TypeError as error:  # what cryptography says of a passphrase that is missing, or one too many
            if "not encrypted" in str(error):
                return paramiko.PKey.from_path(path)
            problem = "has a passphrase: name it as `passphrase`, or add the key to an ssh-agent"
        except paramiko.PasswordRequiredException:
            problem = "has a passphrase: name it as `passphrase`, or add the key to an ssh-agent"
        except (ValueError, paramiko.SSHException) as error:
            wrong = secret is not None and own
            problem = f"cannot be read{', or its passphrase is wrong' if wrong else ''} ({error})"
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        if own:
            raise AgentError(f"{self._where}: key {path} {problem}")
        self._tried.append(f"{path} ({problem})")
        return None


def _public_half(path: Path) -> bytes | None:
    """From the file beside it, which needs no passphrase."""
    try:
        fields = path.with_name(path.name + ".pub").read_text(encoding="utf-8").split()
        return base64.b64decode(fields[1])
    except (OSError, ValueError, IndexError):  # there is none, or it is none
        return None

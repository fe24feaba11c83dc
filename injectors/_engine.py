"""The few calls of a container engine that the injectors need, over its Unix socket.

An agent has the standard library alone: the Docker SDK with all that it needs would be a megabyte and more on every
node, and would be imported by the guardian as well. These are plain HTTP requests (Docker Engine API, as Docker and
Podman serve it).
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
from typing import Any, Dict, List, Optional, Tuple
from urllib.parse import quote, urlencode

from injectors.contract import InjectorError

SOCKET = "/var/run/docker.sock"
_KNOWN = (1, 47)  # the newest version of the API whose answers are known here
_PATIENCE = 5.0  # seconds for a call that waits for nothing


class EngineGone(InjectorError):
    """The engine cannot be asked: nothing is known of its containers then."""


class NotThere(InjectorError):
    """The engine does not have it (any more)."""


class Refused(InjectorError):
    """The engine has answered, and will not.

    Args:
        status: of HTTP.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, patience: float) -> None:
        super().__init__("engine", timeout=patience)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Engine:
    """A container engine.

    Args:
        path: of its socket.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._version: Optional[str] = None

    def version(self) -> str:
        """The version of the API that both sides know, such as ``1.41``.

        Raises:
            EngineGone: nobody answers, or what answers is no engine.
        """
        if self._version is None:
            status, headers, _ = self._exchange("GET", "/_ping", None, _PATIENCE)
            told = headers.get("api-version", "")
            try:
                major, minor = (int(part) for part in told.split("."))
            except ValueError:
                problem = f"what listens at {self.path} is no container engine: it answers with {status}"
                raise EngineGone(problem) from None
            self._version = "{}.{}".format(*min((major, minor), _KNOWN))
        return self._version

    def call(
        self,
        method: str,
        path: str,
        body: Optional[Dict[str, Any]] = None,
        *,
        query: Optional[Dict[str, str]] = None,
        patience: float = _PATIENCE,
    ) -> Any:
        """One request; its answer as JSON, ``None`` where that is empty.

        Raises:
            EngineGone: it does not answer within ``patience`` seconds.
            NotThere: there is no such container or network.
            Refused: it says no; the message is the engine's.
        """
        where = f"/v{self.version()}{path}" + (f"?{urlencode(query)}" if query else "")
        status, _, data = self._exchange(method, where, body, patience)
        try:
            answer = json.loads(data) if data.strip() else None
        except ValueError:
            answer = None
        if status < 400:
            return answer
        told = answer.get("message") if isinstance(answer, dict) else data.decode(errors="replace").strip()
        if status == 404:
            raise NotThere(f"the container engine says: {told}")
        raise Refused(f"the container engine refuses ({status}): {told}", status)

    def containers(self) -> List[Dict[str, Any]]:
        """All containers, as lists tell them, whatever their state."""
        listed: List[Dict[str, Any]] = self.call("GET", "/containers/json", query={"all": "1"})
        return listed

    def inspect(self, container: str) -> Dict[str, Any]:
        """All there is to know of a container, by its id.

        Raises:
            NotThere: it has gone.
        """
        found: Dict[str, Any] = self.call("GET", f"/containers/{quote(container, safe='')}/json")
        return found

    def network(self, network: str) -> Dict[str, Any]:
        """A network, by its id.

        Raises:
            NotThere: it has gone.
        """
        found: Dict[str, Any] = self.call("GET", f"/networks/{quote(network, safe='')}")
        return found

    def _exchange(
        self, method: str, path: str, body: Optional[Dict[str, Any]], patience: float
    ) -> Tuple[int, Dict[str, str], bytes]:
        connection = _Connection(self.path, patience)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineGone(self._why(error, patience)) from error
        finally:
            connection.close()

    def _why(self, error: Exception, patience: float) -> str:
        """What keeps the engine from being asked, with the remedy."""
        number = getattr(error, "errno", None)
        if number == errno.ENOENT:
            return f"no container engine: there is no {self.path}; start one, or name its socket with `socket`"
        if number == errno.ECONNREFUSED:
            return f"the container engine is down: nobody listens at {self.path}; start it (systemctl start docker)"
        if number in (errno.EACCES, errno.EPERM):
            return f"{self.path} may not be used by user {os.geteuid()}: run the agent as root"
        if isinstance(error, socket.timeout):
            return f"the container engine at {self.path} does not answer within {patience:g} s"
        return f"the container engine at {self.path} cannot be asked: {error or type(error).__name__}"

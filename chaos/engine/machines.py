"""The nodes of an inventory as the engine meets them: by the transport that reaches each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.engine.cluster import Message
from chaos.inventory.access import Access
from chaos.transport import local, ssh
from chaos.transport.pipe import AgentClient, Pipe


@dataclass(frozen=True)
class ThisMachine:
    """A node that is the machine of the controller itself.

    Attributes:
        state: folder of its undo records.
    """

    name: str
    state: Path
    address: str = "127.0.0.1"

    def agent(self, log: Path, on_event: Callable[[Message], None]) -> AgentClient:
        """See ``Machine``."""
        return local.start(self.state, log, on_event, name=self.name)

    def run(self, module: str, log: Path) -> Pipe:
        """See ``Machine``."""
        return local.run(module, log, {"CHAOS_STATE": str(self.state)})

    def place(self) -> dict[str, Any]:
        """See ``Machine``."""
        return {"transport": "local", "state": str(self.state)}

    def close(self) -> None:
        """Nothing is kept."""


@dataclass(frozen=True)
class SshMachine:
    """A node that is reached by SSH, over one connection that is kept.

    Attributes:
        inventory: the file that tells of it, by an absolute path.
        connections: of the whole cluster; ended with the last of its nodes.
    """

    name: str
    access: Access
    inventory: str
    connections: ssh.Connections

    @property
    def address(self) -> str:
        """See ``Machine``."""
        return self.access.host

    def agent(self, log: Path, on_event: Callable[[Message], None]) -> AgentClient:
        """See ``Machine``."""
        return ssh.start(self.connections.to(self.access, self.name), log, on_event)

    def run(self, module: str, log: Path) -> Pipe:
        """See ``Machine``."""
        return ssh.start_module(self.connections.to(self.access, self.name), module, log)

    def place(self) -> dict[str, Any]:
        """See ``Machine``."""
        return {"transport": "ssh", "inventory": self.inventory, "node": self.name}

    def close(self) -> None:
        """End all connections."""
        self.connections.close()

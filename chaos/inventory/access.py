"""How a node is reached, and secrets by reference: plain data, with no library behind it."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_PATIENCE = 30.0  # seconds for a command that tells a secret


class SecretError(ValueError):
    """A secret cannot be had; the message names its reference, never its value."""


@dataclass(frozen=True)
class Secret:
    """Where a secret is to be had: exactly one of these. Its value is never kept, shown, logged or put into argv.

    Attributes:
        env: the name of an environment variable.
        file: a file whose first line it is.
        command: a command whose first line of output it is; no shell reads it.
    """

    env: str | None = None
    file: Path | None = None
    command: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.env, self.file, self.command)) != 1:
            raise ValueError("a secret is one of `env`, `file`, `command`")

    def __str__(self) -> str:
        if self.env is not None:
            return f"environment variable {self.env}"
        return f"file {self.file}" if self.file is not None else f"command {self.command[0] if self.command else ''}"

    def __repr__(self) -> str:
        return f"<secret: {self}>"  # a command's arguments are nobody's business

    def value(self) -> str:
        """The secret itself.

        Raises:
            SecretError: it is not there.
        """
        try:
            if self.env is not None:
                text = os.environ[self.env]
            elif self.file is not None:
                text = self.file.read_text(encoding="utf-8")
            else:
                text = self._told(self.command or ()).decode()
        except KeyError:
            raise SecretError(f"{self} is not set") from None
        except OSError as error:
            raise SecretError(f"{self}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SecretError(f"{self} is not UTF-8") from None
        first = text.partition("\n")[0].removesuffix("\r")
        if not first:
            raise SecretError(f"{self} is empty")
        return first

    def _told(self, command: tuple[str, ...]) -> bytes:
        """The output of a command, which gets a group of its own so that nothing of it outlives our patience."""
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise SecretError(f"{self} gave no secret within {_PATIENCE:g} s") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        if process.returncode != 0:
            raise SecretError(f"{self} ended with {process.returncode}")
        return output


@dataclass(frozen=True)
class Access:
    """How one node is reached by SSH.

    Attributes:
        host: address, name, or alias of ``~/.ssh/config``.
        port, user: ``None`` where ``~/.ssh/config``, or else SSH's default, decides.
        key: a private key's file; ``None`` for ssh-agent and the usual files.
        passphrase: of that key, where it has one.
        password: of the user, where the node takes no keys.
        jump: the node in between, which is reached the same way.
        python: the node's Python, 3.9 or newer.
        become: how to become root; ``none`` where the user is root already, or root is not needed.
        become_password: for sudo or su, where they ask for one.
        known_hosts: beside the user's own and the system's.
        config: the ssh configuration to read; ``None`` for ``~/.ssh/config``.
    """

    host: str
    port: int | None = None
    user: str | None = None
    key: Path | None = None
    passphrase: Secret | None = None
    password: Secret | None = None
    jump: Access | None = None
    python: str = "python3"
    become: Literal["none", "sudo", "su"] = "none"
    become_password: Secret | None = None
    known_hosts: tuple[Path, ...] = field(default=())
    config: Path | None = None

"""An agent in the lab, started by the lab's keeper: inside a node's namespaces, where it dies with the node, or on the
head, beside the job's launcher, where it dies with the lab."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from chaos.agent.protocol import Message
from chaos.lab.client import LabClient
from chaos.lab.errors import LabError
from chaos.transport.bundle import AGENT
from chaos.transport.local import python_path
from chaos.transport.pipe import AgentClient, AgentError

COMMAND = [sys.executable, "-m", AGENT]  # imports what this interpreter does, wherever it is started


def start(lab: LabClient, node: int | None, log: Path, on_event: Callable[[Message], None]) -> AgentClient:
    """Start an agent on a node, or (no node) on the head.

    Args:
        log: the file for its stderr.

    Raises:
        AgentError: the node is off, or the agent does not start.
    """
    name = "the head" if node is None else f"node {node}"
    env = os.environ | {"PYTHONPATH": python_path()}
    if node is None:  # a node has a folder of its own for its records
        env |= {"CHAOS_STATE": str(lab.directory / "head"), "CHAOS_RUNTIME": str(lab.directory / "run")}
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    try:
        with log.open("ab") as errors:
            process = lab.spawn(
                COMMAND,
                node=node,
                env=env,
                stdin=their_in,
                stdout=their_out,
                stderr=errors.fileno(),
            )
    except LabError as error:
        os.close(our_in)
        os.close(our_out)
        raise AgentError(f"no agent starts on {name}: {error}") from error
    finally:
        os.close(their_in)
        os.close(their_out)
    return AgentClient(name, our_out, our_in, process, on_event)

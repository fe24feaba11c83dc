"""Undoing a fault from its record alone: what guardian, sweep and a starting agent have in common."""

from __future__ import annotations

import importlib
import time
import traceback
from typing import List, Sequence

from chaos.agent.records import Held, RecordGone
from injectors.contract import Injector, InjectorError

RETRIES = (0.0, 0.05, 0.2, 0.5, 1.0)  # seconds before each attempt of whoever cannot wait for ever


def load(implementation: str) -> Injector:
    """An injector by ``module:Class``.

    Raises:
        InjectorError: there is none of that name here.
    """
    module, _, name = implementation.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, ValueError) as error:
        raise InjectorError(f"this agent has no injector {implementation}: {error}") from error
    return made  # type: ignore[no-any-return]


def relieve(held: Held, pauses: Sequence[float] = RETRIES) -> List[str]:
    """Undo a fault, and forget it once that is proven. Never raises.

    Args:
        pauses: seconds before each attempt.

    Returns:
        What is left, in words; empty where nothing is, whoever undid it.
    """
    left: List[str] = []
    for pause in pauses:
        time.sleep(pause)
        left = _relieve(held)
        if not left:
            break
    return left


def _relieve(held: Held) -> List[str]:
    record = held.record
    try:
        injector = load(record.implementation)
        with held.working():
            injector.undo(record)
            left = injector.residue(record)
            if not left:
                held.remove()
    except RecordGone:
        return []
    except Exception as error:  # noqa: BLE001 - whatever a site's injector raises: it is not undone, and is told
        return [f"fault {record.fault} is not undone: {describe(error)}"]
    return [f"fault {record.fault}: {what}" for what in left]


def describe(error: BaseException) -> str:
    """An error for the controller: our own say what they mean, others need their name; the trace goes to stderr."""
    if isinstance(error, InjectorError):
        return str(error)
    traceback.print_exception(type(error), error, error.__traceback__)
    return f"{type(error).__name__}: {error}"

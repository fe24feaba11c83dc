"""Training text that every machine has: the sources of Python's own standard library, as bytes.

Which bytes a rank sees in a step is a pure function of seed, step and slot, so a recovered run sees what an undisturbed
one saw, whatever happened in between.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

BYTE_BUDGET = 512 * 1024
_MASK = (1 << 64) - 1


class NoTextError(RuntimeError):
    """This Python has no readable standard library to train on."""


def standard_library_text(budget: int = BYTE_BUDGET) -> Tensor:
    """uint8: the first ``budget`` bytes of the top-level modules in the order of their names, without private ones.

    The same on every node that runs the same Python. Raises NoTextError where there are no sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    for path in sorted(folder.glob("[a-z]*.py")):
        text += path.read_bytes()
        if len(text) >= budget:
            break
    if not text:
        raise NoTextError(f"no Python sources in {folder}: the reference trainer learns from the standard library's")
    return torch.frombuffer(text, dtype=torch.uint8)[:budget].clone()


class ByteText:
    """Cuts training batches out of a text.

    Args:
        text: the bytes, uint8, longer than ``context``.
        seed: of the order.
        batch: sequences in a batch.
        context: bytes in a sequence.
    """

    def __init__(self, text: Tensor, seed: int, batch: int, context: int) -> None:
        self._text = text
        self._seed = _mix(seed)
        self._batch = batch
        self._length = context + 1
        self._starts = len(text) - context

    def batch(self, step: int, slot: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, int64 ``[batch, context]``, of the step that follows ``step`` completed ones."""
        # Counter-based: no state to carry, to save or to lose. Plain integers, because building a generator object for
        # two numbers costs ten times as much.
        counter = _mix(_mix(self._seed + step) + slot)
        starts = [_mix(counter + sequence) % self._starts for sequence in range(self._batch)]
        tokens = torch.stack([self._text[start : start + self._length] for start in starts]).long()
        return tokens[:, :-1], tokens[:, 1:]


def _mix(value: int) -> int:
    """64 well-mixed bits of a whole number (splitmix64; Steele, Lea, Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)

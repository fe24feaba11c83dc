"""A 64-bit content hash of tensors, to tell whether replicas agree to the bit.

Position-sensitive: exchanged values, equal flips in two places and paired sign flips all change it (an XOR, as in
``torch.hash_tensor``, misses the first two; a plain weighted sum misses the third). The algorithm is named with every
digest, because digests of different algorithms cannot be compared:

``xxh3_64``  the xxHash library over the bytes; for CPU tensors, where the library is installed.
``mix64``    the same purpose in torch operations; for tensors on a device, whose bytes should not come to the host,
             and where the library is missing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_LANE = 8  # bytes
_BLOCK = 1 << 16  # lanes that share one set of weights


class Hash(Protocol):
    """A named content hash."""

    name: str

    def __call__(self, tensors: Sequence[Tensor]) -> str:
        """16 hexadecimal digits over all elements of ``tensors`` in their order."""


def hash_for(device: torch.device | str = "cpu") -> Hash:
    """The fastest hash that is available for tensors on ``device``."""
    if torch.device(device).type == "cpu" and importlib.util.find_spec("xxhash") is not None:
        return XXH3()
    return Mix64()


class XXH3:
    """xxh3_64 over the tensors' bytes; 30 GB/s and more on one core."""

    name = "xxh3_64"

    def __init__(self) -> None:
        import xxhash  # noqa: PLC0415 - optional: only found where the workload's own environment has it

        self._new = xxhash.xxh3_64

    def __call__(self, tensors: Sequence[Tensor]) -> str:
        """Digest of CPU tensors; one that is not contiguous is copied first."""
        state = self._new()
        for tensor in tensors:
            state.update(_bytes(tensor).numpy().data)
        return str(state.hexdigest())


class Mix64:
    """A hash in torch operations, the same on every device.

    The bytes are taken as 64-bit lanes. Each lane is mixed with its own upper half (so that a sign bit reaches the low
    bits), multiplied by an odd weight that depends on its position, and summed modulo 2**64 in blocks; the block sums
    go through the finalizer of splitmix64 (Steele, Lea, Flood 2014) with their number.
    """

    name = "mix64"

    def __call__(self, tensors: Sequence[Tensor]) -> str:
        """Digest of tensors on any one device; only 8 bytes for each half MiB come to the host."""
        blocks = 0
        total = 0
        for tensor in tensors:
            data = _bytes(tensor)
            for block_sum in _block_sums(data).tolist():
                blocks += 1
                total += _finalize(block_sum + blocks * _GOLDEN)
            total = _finalize(total ^ data.numel())
        return f"{total & _MASK:016x}"


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _block_sums(data: Tensor) -> Tensor:
    spare = -data.numel() % (_LANE * _BLOCK)
    if data.numel() * 2 < _LANE * _BLOCK:  # a small tensor is not blown up to a whole block
        spare = -data.numel() % _LANE
    if spare or data.storage_offset() % _LANE:
        data = torch.cat([data, data.new_zeros(spare)])
    lanes = data.view(torch.int64)
    lanes = lanes.view(-1, min(_BLOCK, lanes.numel() or 1))
    mixed = torch.bitwise_right_shift(lanes, 29).bitwise_xor_(lanes)
    return mixed.mul_(_weights(data.device)[: lanes.shape[1]]).sum(dim=1)


@lru_cache(maxsize=8)
def _weights(device: torch.device) -> Tensor:
    values = [_signed(_finalize((i + 1) * _GOLDEN) | 1) for i in range(_BLOCK)]
    return torch.tensor(values, dtype=torch.int64, device=device)


def _finalize(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value

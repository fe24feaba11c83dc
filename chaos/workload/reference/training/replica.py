"""One replica of what is trained: model, state, data and optimizer, without any communication."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from chaos.workload.fingerprint import hash_for
from chaos.workload.reference.config import ModelShape
from chaos.workload.reference.training.arena import Arena
from chaos.workload.reference.training.data import ByteText, standard_library_text
from chaos.workload.reference.training.model import Decoder
from chaos.workload.reference.training.optimizer import AdamW

_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class StepFigures:
    """Of one completed step, over all ranks: mean loss (nats a byte), norm of the averaged gradient, votes cast."""

    loss: float
    gradient_norm: float
    votes: int


class Replica:
    """A replica that is a pure function of (shape, seed, completed steps, world size).

    Args:
        shape: sizes.
        seed: of the parameters and of the data's order.
        device: where it is trained.

    Attributes:
        completed: optimizer steps done.
        tokens: bytes that this replica learns from in a step.
    """

    def __init__(self, shape: ModelShape, seed: int, device: torch.device | str = "cpu") -> None:
        self._shape, self._seed, self._device = shape, seed, torch.device(device)
        self._model = Decoder(shape, seed).to(self._device)
        self._data = ByteText(standard_library_text(), seed, shape.batch, shape.context)
        self._optimizer = AdamW()
        self._hash = hash_for(self._device)
        self.arena = Arena(self._model)
        self._initial = self.arena.parameters.clone()
        self.completed = 0
        self.tokens = shape.batch * shape.context

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal for a state to be this replica's state."""
        return {"model": asdict(self._shape), "seed": self._seed, "parameters": self.arena.size}

    @property
    def hash_algorithm(self) -> str:
        """The name of the algorithm of ``digest``."""
        return self._hash.name

    def compute(self, slot: int, *, vote: bool = False) -> Tensor:
        """This slot's gradient, loss and vote for the next step, in the buffer that the all-reduce sums over the ranks.

        Args:
            vote: on whatever all ranks must agree on at one and the same step.
        """
        buffer = self.arena.gradient
        buffer.zero_()
        inputs, targets = self._data.batch(self.completed, slot)
        loss = self._model(inputs.to(self._device), targets.to(self._device))
        loss.backward()
        buffer[-2] = loss.detach()
        buffer[-1] = float(vote)
        return buffer

    @torch.no_grad()
    def apply(self, world: int) -> StepFigures:
        """Complete the step, once the buffer holds the sum over all ``world`` ranks."""
        votes = int(self.arena.gradient[-1])
        total = self.arena.gradient.div_(world)
        loss = float(total[-2])
        norm = self._optimizer.update(self.arena, total[:-2], self.completed)
        self.completed += 1
        return StepFigures(loss, norm, votes)

    def digest(self) -> str:
        """Content hash of parameters and moments."""
        return self._hash([self.arena.state])

    def load(self, state: Tensor, completed: int) -> None:
        """Take over a state, float32 ``[3 * parameters]``, after ``completed`` steps."""
        self.arena.state.copy_(state)
        self.completed = completed

    def reset(self) -> None:
        """Back to the state before the first step."""
        self.arena.state.zero_()
        self.arena.parameters.copy_(self._initial)
        self.completed = 0

    def warm_up(self) -> None:
        """Do a few steps that do not count: a first step pays for allocations and lazy set-up."""
        for _ in range(_WARM_UP_STEPS):
            self.compute(0)
            self.apply(1)
            self.digest()
        self.reset()

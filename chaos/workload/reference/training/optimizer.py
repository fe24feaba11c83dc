"""AdamW (Loshchilov, Hutter 2019, arXiv:1711.05101) on an arena's flat tensors, with warm-up and clipping.

Written out rather than taken from torch.optim, whose first use imports the compiler: 1.5 s at every start of a rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chaos.workload.reference.training.arena import Arena


@dataclass(frozen=True)
class AdamW:
    """The rule; its state lives in the arena and its clock is the number of completed steps."""

    rate: float = 3e-3
    warmup: int = 20
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    decay: float = 0.1
    clip: float = 1.0

    def update(self, arena: Arena, gradient: Tensor, completed: int) -> float:
        """Do step ``completed + 1`` with the averaged ``gradient`` (changed in place by clipping).

        Returns:
            The norm of the averaged gradient before clipping.
        """
        norm = float(torch.linalg.vector_norm(gradient))
        if norm > self.clip:
            gradient.mul_(self.clip / norm)
        step = completed + 1
        rate = self.rate * min(1.0, step / self.warmup)
        first, second = arena.first_moment, arena.second_moment
        first.lerp_(gradient, 1 - self.beta1)
        second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        arena.parameters[: arena.decayed].mul_(1 - rate * self.decay)
        root = torch.sqrt(second, out=arena.scratch).div_(math.sqrt(1 - self.beta2**step)).add_(self.epsilon)
        arena.parameters.addcdiv_(first, root, value=-rate / (1 - self.beta1**step))
        return norm

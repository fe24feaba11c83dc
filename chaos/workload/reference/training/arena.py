"""One flat tensor for all parameters and moments, one for all gradients.

The model's parameters and gradients are views. So the all-reduce is one call without copies, the optimizer works on
whole tensors, and the replica's state is one buffer to hash, to write and to send.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor, nn


class Arena:
    """Takes over the storage of a model's parameters.

    Attributes:
        state: float32 ``[3 * parameters]``: parameters, first moments, second moments.
        parameters, first_moment, second_moment: the thirds of ``state``.
        gradient: float32 ``[parameters + 2]``: the gradient, then the loss and a vote, which so travel in the same
            all-reduce.
        scratch: float32 ``[parameters]``, for whoever needs it for a moment.
        decayed: how many leading parameters take weight decay (matrices; the gains of norms come after them).
    """

    def __init__(self, model: nn.Module) -> None:
        self._model_parameters = sorted(model.parameters(), key=lambda parameter: parameter.dim() < 2)
        self._sizes = [parameter.numel() for parameter in self._model_parameters]
        self.size = sum(self._sizes)
        self.decayed = sum(p.numel() for p in self._model_parameters if p.dim() > 1)
        self._device = self._model_parameters[0].device
        self.state = torch.zeros(3 * self.size, device=self._device)
        self.parameters, self.first_moment, self.second_moment = self.state.view(3, -1)
        for parameter, view in zip(self._model_parameters, self._views(self.parameters), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.scratch = torch.empty(self.size, device=self._device)
        self.renew_gradient()

    def renew_gradient(self) -> None:
        """Give gradients a new buffer: a collective that was given up may still write to the old one."""
        self.gradient = torch.zeros(self.size + 2, device=self._device)
        for parameter, view in zip(self._model_parameters, self._views(self.gradient), strict=True):
            parameter.grad = view

    def _views(self, flat: Tensor) -> list[Tensor]:
        ends = accumulate(self._sizes)
        return [
            flat[end - size : end].view(parameter.shape)
            for parameter, size, end in zip(self._model_parameters, self._sizes, ends, strict=True)
        ]

"""A model's smooth twin: a copy with smooth activations, from which a search starts."""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from .._observation import Observation


class SmoothLeakyReLU(nn.Module):
    """x (a + (1 - a) σ(x / width)), which tends to LeakyReLU with slope a as the width goes to 0.

    The gradient of a piecewise linear network jumps wherever an input crosses a kink, so a
    matching cost has cliffs and a candidate on the wrong side of one stays there. The twin's
    gradient has none; as the width falls it leads to the model's own.
    """

    def __init__(self, slope: float, width: float) -> None:
        super().__init__()
        self.slope, self.width = slope, width

    def forward(self, inputs: Tensor) -> Tensor:
        """The activation, entry by entry."""
        gate = torch.sigmoid(inputs / self.width)
        return inputs * (self.slope + (1 - self.slope) * gate)


class SmoothTwin:
    """An observation whose model has smooth activations of a width that can be set.

    Modules of the classes ReLU and LeakyReLU are replaced in a copy; a model without them (or that
    calls them as functions) is its own twin, and `is_smoother` is False.
    """

    def __init__(self, observation: Observation, width: float) -> None:
        model = copy.deepcopy(observation.model)
        self._activations = _replace_activations(model, width)
        self.is_smoother = bool(self._activations)
        self.observation = replace(observation, model=model) if self.is_smoother else observation

    def set_width(self, width: float) -> None:
        """Make the activations this smooth."""
        for activation in self._activations:
            activation.width = width


def _replace_activations(module: nn.Module, width: float) -> list[SmoothLeakyReLU]:
    made: list[SmoothLeakyReLU] = []
    for name, child in module.named_children():
        if isinstance(child, (nn.ReLU, nn.LeakyReLU)):
            slope = child.negative_slope if isinstance(child, nn.LeakyReLU) else 0.0
            made.append(SmoothLeakyReLU(slope, width))
            setattr(module, name, made[-1])
        else:
            made += _replace_activations(child, width)
    return made

"""The running statistics of BatchNorm layers as a prior on the batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradveil.messages import FunctionalLoss

from .._observation import Observation


class BatchNormDistance:
    """How far the statistics of a batch are from the running ones, over all BatchNorm layers.

    R(x) = mean over layers l and channels of ((μ_l(x) - μ̂_l) / σ̂_l)² + (σ_l(x) / σ̂_l - 1)²,

    with μ_l(x), σ_l(x) the mean and standard deviation of the layer's input over examples and
    positions, and μ̂_l, σ̂_l what the model carries. 0 for models without running statistics.

    Reference: Yin et al., "See through Gradients: Image Batch Recovery via GradInversion", CVPR
    2021, Eq. 7 (there norms that are not relative to σ̂).
    """

    def __init__(self, observation: Observation) -> None:
        self.loss = FunctionalLoss(observation.model, observation.loss_fn, seed=0)
        self.layers = [
            module
            for module in observation.model.modules()
            if isinstance(module, _BatchNorm) and module.running_mean is not None
        ]

    def __bool__(self) -> bool:
        return bool(self.layers)

    def __call__(self, inputs: Tensor) -> Tensor:
        """R(x), differentiable."""
        if not self.layers:
            return inputs.new_zeros(())
        with self._recorded() as seen:
            self.loss.outputs(self.loss.parameters, inputs)
        return torch.stack([_distance(layer, values) for layer, values in seen]).mean()

    @contextmanager
    def _recorded(self) -> Iterator[list[tuple[_BatchNorm, Tensor]]]:
        seen: list[tuple[_BatchNorm, Tensor]] = []

        def record(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
            assert isinstance(layer, _BatchNorm)
            seen.append((layer, arguments[0]))

        handles = [layer.register_forward_pre_hook(record) for layer in self.layers]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


def _distance(layer: _BatchNorm, values: Tensor) -> Tensor:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    over = [0, *range(2, values.dim())]
    spread = (layer.running_var.detach() + layer.eps).sqrt()
    mean, variance = values.mean(over), values.var(over, unbiased=False)
    shift = (mean - layer.running_mean.detach()) / spread
    ratio = (variance + layer.eps).sqrt() / spread
    return (shift.square() + (ratio - 1).square()).mean()

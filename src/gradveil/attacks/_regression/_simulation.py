"""Messages of random inputs, made by the attacker itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._typing import Tensors

from .._attack import Progress
from .._evidence import random_examples
from .._observation import Observation
from .._search import Watch
from ._ridge import choose_ridge, fit_ridge

WIDTH = 8192
"""Larger tensors of a message are summed up, with random signs, to so many numbers: products of
two of them stay the same in the mean."""
PROJECTIONS = 64
"""Random directions of the inputs in which tensors are judged."""
SHARPNESS = 16
"""A tensor's weight is its error on samples left out to the minus this."""
LEAST = 16
"""So many samples are drawn in any case."""


@dataclass(frozen=True)
class Simulation:
    """Random inputs and the sketches of their messages."""

    inputs: Tensor
    """Shape (samples, batch, ...)."""
    messages: dict[str, Tensor]
    """Shape (samples, entries of the sketch), by parameter name."""
    sketch: "_Sketch"
    directions: Tensor

    @classmethod
    def of(
        cls,
        observation: Observation,
        labels: Tensor,
        samples: int,
        generator: torch.Generator,
        watch: Watch,
        progress: Progress | None,
    ) -> "Simulation":
        """As many samples as the time allows."""
        drawn = random_examples(observation, samples * observation.batch_size, generator)
        drawn = drawn.unflatten(0, (samples, observation.batch_size))
        sketch, message = _Sketch(observation.sent, generator), observation.message(labels)
        rows: list[Tensors] = []
        for number, batch in enumerate(drawn):
            if number >= LEAST and watch.is_over():
                break
            rows.append(sketch({name: part.detach() for name, part in message(batch).items()}))
            if progress is not None:
                progress(number + 1, samples, 1.0)
        messages = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        blank = drawn.new_empty(drawn[0].numel(), PROJECTIONS)
        return cls(drawn[: len(rows)], messages, sketch, normal_like(blank, generator))

    def estimate(self, observation: Observation) -> tuple[Tensor, float]:
        """The inputs of a message, and the error on samples left out, over their variance."""
        targets = self.inputs.flatten(1).double()
        centred = targets - targets.mean(0)
        seen = centred @ self.directions.double()
        kernel, row = self._kernel(observation, seen)
        ridge = choose_ridge(kernel, seen)
        found = targets.mean(0) + row @ fit_ridge(kernel, centred, ridge)
        return found.to(self.inputs).view(self.inputs.shape[1:]), ridge.error

    def _kernel(self, observation: Observation, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted kernel between samples, and that of samples with what was sent."""
        sent = self.sketch({name: observation.sent[name] for name in self.messages})
        kernels, rows, weights = [], [], []
        for name, values in self.messages.items():
            mean = values.mean(0)
            centred, own = values - mean, sent[name] - mean
            size = centred.square().sum(1).mean()
            if not bool(size > 0):
                continue
            kernels.append((centred @ centred.T / size).double())
            rows.append((centred @ own / size).double())
            weights.append(choose_ridge(kernels[-1], seen).error ** -SHARPNESS)
        share = torch.tensor(weights, dtype=torch.float64, device=seen.device)
        share = share / share.sum()
        both = [torch.tensordot(share, torch.stack(part), 1) for part in (kernels, rows)]
        return both[0], both[1]


class _Sketch:
    """Large tensors made small, by sums of entries with random signs."""

    def __init__(self, like: Tensors, generator: torch.Generator) -> None:
        self._maps: dict[str, tuple[Tensor, Tensor]] = {}
        for name, values in like.items():
            if values.numel() > WIDTH:
                drawn = normal_like(values.new_empty(2, values.numel()), generator)
                places = (WIDTH * torch.special.ndtr(drawn[0])).long().clamp(0, WIDTH - 1)
                self._maps[name] = (places, drawn[1].sign())

    def __call__(self, values: Tensors) -> Tensors:
        """The tensors as rows."""
        return {name: self._small(name, part.flatten()) for name, part in values.items()}

    def _small(self, name: str, row: Tensor) -> Tensor:
        if name not in self._maps:
            return row
        places, signs = self._maps[name]
        return row.new_zeros(WIDTH).index_add_(0, places, row * signs)

"""Fishing: a head that lets only the examples of one class reach the gradient."""

from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from gradveil._checks import WrongValue, check_count, check_kind, check_positive
from gradveil._random import generator_or_fresh

from ._attack import Reconstruction, Search
from ._imprint import check_planted
from ._inverting_gradients import InvertingGradients
from ._labels import labels_or_unknown
from ._observation import Observation


@dataclass(frozen=True)
class Fishing(Search):
    """A server that plants a head which silences all classes but one, and inverts what is left.

    `plant` sets the rows of all other classes to 0 and the class's own bias to -20. The signal
    that comes back to the features is then Σ_i (p_i - y_i) W_i = (p_c - y_c) W_c: about 0 for
    every example of another class, -W_c for those of class c. The gradients of all earlier layers
    are those of the examples of class c alone, times n_c / B, and ∂L/∂b_c = -n_c / B tells n_c.
    One example of the class in a batch of any size is attacked as if it had come alone.

    Reference: Wen, Geiping, Fowl, Goldblum and Goldstein, "Fishing for User Data in Large-Batch
    Federated Learning via Gradient Magnification", ICML 2022.

    Args:
        target: The class c.
        attack: Inverts the gradient of the examples of the class. The other places of the batch
            are filled with 0.
        amplify: Of the class's row W_c, and so of the signal.

    >>> Fishing(target=3).target
    3
    """

    target: int
    attack: InvertingGradients = field(default_factory=InvertingGradients.strong)
    amplify: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.target, "target", least=0)
        check_kind(self.attack, "attack", InvertingGradients, "Use `InvertingGradients()`.")
        check_positive(self.amplify, "amplify")

    def plant(self, model: nn.Module) -> nn.Module:
        """A copy of the model with the head that the server sends out."""
        check_kind(model, "model", nn.Module, "Give the model that is trained.")
        planted = deepcopy(model)
        head = self._head(planted)
        with torch.no_grad():
            own = self.amplify * head.weight[self.target]
            head.weight.zero_()[self.target] = own
            head.bias.zero_()[self.target] = -20.0  # p_c ≈ e^-20
        return planted

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack a message of a model that `plant` made."""
        check_planted(observation, "Fishing")
        generator = generator_or_fresh(generator)
        count = self._count(observation)
        inner = self.attack.configured(time_budget=self.time_budget, progress=self.progress)
        caught = inner(self._of_class(observation, count), generator)
        inputs = caught.inputs.new_zeros(observation.batch_size, *observation.input_shape)
        inputs[:count] = caught.inputs
        others = labels_or_unknown(observation, generator)
        targets = torch.cat([caught.targets, _without(others, self.target, count)])
        return replace(caught, inputs=inputs, targets=targets)

    def _head(self, model: nn.Module) -> nn.Linear:
        layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m.bias is not None]
        if not layers or layers[-1].out_features <= self.target:
            raise WrongValue(
                "model",
                f"end in an `nn.Linear` with a bias and a row for class {self.target}",
                f"{layers[-1].out_features} classes" if layers else "no such layer",
                "Choose another `target`, or `Imprint`.",
            )
        return layers[-1]

    def _count(self, observation: Observation) -> int:
        """How many examples of the class there are: from -B ∂L/∂b_c, at least one."""
        if observation.label_counts is not None:
            return max(1, int(observation.label_counts[self.target]))
        head = self._head(observation.model)
        name = next(n for n, p in observation.model.named_parameters() if p is head.bias)
        told = -observation.batch_size * float(observation.sent[name][self.target])
        return min(observation.batch_size, max(1, round(told)))

    def _of_class(self, observation: Observation, count: int) -> Observation:
        """The message of the class's examples alone: all layers but the head."""
        model = deepcopy(observation.model)
        self._head(model).requires_grad_(False)
        left = {n: observation.sent[n] for n, p in model.named_parameters() if p.requires_grad}
        scale = observation.batch_size / count
        targets = torch.full((count,), self.target)
        return replace(
            observation,
            model=model,
            sent={name: scale * value for name, value in left.items()},
            batch_size=count,
            labels=targets,
            label_counts=torch.bincount(targets, minlength=observation.num_classes),
            defense=None,
            mechanism=None,
        )


def _without(labels: Tensor, target: int, count: int) -> Tensor:
    """The labels less the first `count` of one class, or less any if there are not so many."""
    first = (labels == target).nonzero().flatten()[:count]
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[first] = False
    return labels[kept][: len(labels) - count]

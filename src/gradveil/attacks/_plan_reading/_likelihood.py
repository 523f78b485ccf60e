"""How likely a message is when its noise levels were planned from the candidate itself."""

import torch
from torch import Tensor

from gradveil._tensors import flatten
from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism
from gradveil.messages import separates
from gradveil.sensitivity import Estimator, Moments, PerExample, Sketch

from .._observation import Observation

LEAST = 1e-2
"""The least standard deviation, over the root mean square of all: no level divides by 0."""


class PlanLikelihood:
    """-log p(y | x) = ½ Σ_i ((y_i - μ_i(x))² / Σ_i(x) + log Σ_i(x)), up to a constant.

    Σ(x) is the defense's own plan from the moments of x, with random probes that stay the same, so
    that it is one smooth function of x. The second term is the log-determinant: without it large
    noise would explain everything. A mechanism that the attacker knows has levels that do not
    depend on x, and the term is a constant.

    Args:
        observation: What was sent, with the defense or its mechanism.
        labels: Of the batch.
        probes: Random directions for the sensitivities at a candidate.
        seed: Of the probes.
    """

    def __init__(
        self, observation: Observation, labels: Tensor, probes: int = 8, seed: int = 0
    ) -> None:
        self.observation, self.probes, self.seed = observation, probes, seed
        self.message = observation.message(labels)
        self.sent = flatten({n: observation.sent[n] for n in self.message.parameters})  # type: ignore[attr-defined]

    def __call__(self, inputs: Tensor) -> Tensor:
        """The cost of one candidate batch, a 0-d float64 tensor, differentiable."""
        means, variances = self.levels(inputs)
        errors = (self.sent - means).square() / variances
        return 0.5 * (errors + variances.log()).sum(dtype=torch.float64)

    def levels(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """μ(x) and Σ(x) in one row each, differentiable with respect to the inputs."""
        if self.observation.mechanism is not None:
            return self._rows(self.message(inputs), self.observation.mechanism)
        measured = self._estimator(inputs)(self.message, inputs, self._probes())
        moments = Moments(
            {name: value.square() for name, value in measured.values.items()},
            measured.squared_sensitivities,
            inputs.numel(),
        )
        assert self.observation.defense is not None
        return self._rows(measured.values, self.observation.defense.plan(moments))

    def _rows(self, values: Tensors, mechanism: object) -> tuple[Tensor, Tensor]:
        if not isinstance(mechanism, Mechanism):
            raise ValueError(
                "Parameter `observation` should have a defense that adds noise. Found one that"
                f" plans a {type(mechanism).__name__}. Use `Adaptive`."
            )
        variances = flatten(mechanism.variance(values))
        least = LEAST**2 * float(variances.detach().mean())
        tiny = torch.finfo(variances.dtype).tiny
        return flatten(mechanism.mean(values)), variances.clamp(min=max(least, tiny))

    def _estimator(self, inputs: Tensor) -> Estimator:
        return (PerExample if separates(self.message, inputs) else Sketch)(self.probes)

    def _probes(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def plan_can_be_read(observation: Observation) -> bool:
    """Whether the noise levels were planned from the private batch, entry by entry, and are hidden.

    Only then the levels of a message say more of the batch than the message's mean does.
    """
    defense = observation.defense
    hidden = observation.mechanism is None and not observation.plan_is_public
    return (
        hidden
        and defense is not None
        and defense.plan_is_private
        and defense.needs_sensitivities
        and defense.family == "noise"
        and defense.granularity == "parameter"
    )

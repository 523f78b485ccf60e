"""Exact inversion of batches through a fully connected ReLU layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_count, check_not_negative, check_optional_callable
from gradveil._random import generator_or_fresh, seed_from

from .._attack import Attack, Progress
from .._observation import Observation, check_observation
from .._reconstruction import FINISHED, INTERRUPTED, TIME_BUDGET, Reconstruction
from .._search import Watch, clamp, labels_of, noise_start
from ._hunt import Hunt
from ._problem import Problem, misfit_of, problem_of


@dataclass(frozen=True)
class ExactInversion(Attack):
    """All inputs of a batch, exactly, from the gradient of a fully connected ReLU layer.

    For u = W x + b the gradients are [∂L/∂W, ∂L/∂b] = Δ [X, 1] with Δ the gradients at the outputs,
    one column for each example: a matrix whose rank is the batch size. Its factors are known up to
    one invertible matrix Q, and ReLU tells which: where a unit is inactive, Δ is 0, so each column
    of Δ is a vector with many zeros in a known subspace.

    1. Low-rank factors; the rank and the noise are read from the singular values (`Factors`).
    2. Sparse vectors of the column space by reweighted least squares from many starts, guided by
       what outputs are possible (`search`). The published method samples units and takes null
       directions, which needs about 2^(batch size) samples.
    3. The inputs by Q⁻¹, their lengths from the bias (`assemble`); without a bias from the later
       layers.
    4. Labels and repetitions from the gradients that each label would make (`explain`). Labels that
       the threat model grants are used for the order only.
    5. The batch counts as found if it makes the message that was sent, up to rounding or up to the
       noise that the singular values show.

    FedAvg's weight change is Δ [X, 1], too, with Δ summed over the local steps; zeros are units
    that stay inactive all along.

    Reference: Dimitrov et al., "SPEAR: Exact Gradient Inversion of Batches in Federated Learning",
    NeurIPS 2024, for the factors, the sparsity and the exactness; the search is this project's.

    Args:
        rounds: How often the search starts again for what is still missing.
        time_budget: Seconds after which it gives up; `None`: no limit.
        progress: Called with (round, rounds, share of the inputs that are missing).

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
    >>> from gradveil.attacks import observe
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 8, 2], activation="relu")
    >>> private = torch.tensor([[0.2, 0.7, 0.4]]), torch.tensor([1])
    >>> seen = observe(model, cross_entropy, private, NoDefense(), num_classes=2)
    >>> ExactInversion()(seen).inputs.round(decimals=2)
    tensor([[0.2000, 0.7000, 0.4000]])
    """

    rounds: int = 30
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_count(self.rounds, "rounds")
        check_optional_callable(self.progress, "progress", "Give a function, or None.")
        if self.time_budget is not None:
            check_not_negative(self.time_budget, "time_budget")

    @property
    def work(self) -> float:
        """The rounds."""
        return float(self.rounds)

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; noise where nothing was found. `loss` is the relative misfit of the message.

        A message that the method does not apply to is an error.
        """
        check_observation(observation)
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        problem = problem_of(observation, _own(generator))
        if problem is None:
            raise ValueError(
                "Parameter `observation` should be of a model that starts with a trainable"
                " `nn.Linear` with ReLU, of a batch smaller than that layer, and of a message whose"
                " rank noise and pruning do not hide. Found one that the method does not apply to."
                " Use `InvertingGradients`."
            )
        result = self._search(problem, _own(generator), watch, self.progress)
        if isinstance(result, Reconstruction):
            return result
        return _noise(observation, labels_of(observation, generator), generator, result)

    def solve(
        self,
        observation: Observation,
        labels: Tensor,
        generator: torch.Generator,
        watch: Watch,
        progress: Progress | None = None,
    ) -> Reconstruction | None:
        """The batch; `None` where it is not found. The generator keeps its state."""
        own = _own(generator)
        problem = problem_of(observation, own)
        if problem is None:
            return None
        result = self._search(problem, own, watch, progress)
        if result == INTERRUPTED:
            return _noise(observation, labels, own, INTERRUPTED)
        return result if isinstance(result, Reconstruction) else None

    def _search(
        self,
        problem: Problem,
        generator: torch.Generator,
        watch: Watch,
        progress: Progress | None,
    ) -> Reconstruction | str:
        """The batch, or the status with which the search for it ended."""
        hunt = Hunt(problem.factors)
        try:
            for number in range(self.rounds):
                if progress is not None:
                    progress(number, self.rounds, hunt.missing / problem.factors.rank)
                if watch.is_over():
                    return TIME_BUDGET
                batch = hunt.run(generator)
                found = None if batch is None else problem.explained(batch)
                if found is not None:
                    return found
                if batch is not None:
                    hunt.doubt(batch)
                if hunt.is_hopeless:
                    break
        except KeyboardInterrupt:
            return INTERRUPTED
        return FINISHED


def _own(generator: torch.Generator) -> torch.Generator:
    """A generator of the same state's seed: the given one draws nothing here."""
    return torch.Generator().manual_seed(seed_from(generator))


def _noise(
    observation: Observation, labels: Tensor, generator: torch.Generator, status: str
) -> Reconstruction:
    """A guess that says nothing, for where nothing was found."""
    inputs = noise_start(observation, 1, generator)[0]
    inputs = clamp(inputs, observation.low, observation.high)
    return Reconstruction(inputs, labels, misfit_of(observation, inputs, labels), status=status)

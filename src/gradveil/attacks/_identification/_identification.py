"""What the exact attacker finds out from one message."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_number


@dataclass(frozen=True)
class Identification:
    """The posterior over the candidates, from a uniform prior.

    >>> found = Identification(torch.tensor([0.0, math.log(3.0)]), torch.tensor([[0.0], [1.0]]))
    >>> found.posterior, found.best, found.rank(0)
    (tensor([0.2500, 0.7500]), 1, 2.0)
    >>> found.mean
    tensor([0.7500])
    """

    log_likelihoods: Tensor
    """log p(sent | candidate), one for each; means over labels where these are not known."""
    inputs: Tensor
    """The candidates themselves."""
    targets: Tensor | None = None
    """The label that is the most likely one, for each candidate."""

    @property
    def posterior(self) -> Tensor:
        """p(candidate | sent)."""
        return self.log_likelihoods.softmax(0)

    @property
    def best(self) -> int:
        """The index of the most likely candidate."""
        return int(self.log_likelihoods.argmax())

    @property
    def mean(self) -> Tensor:
        """E[candidate | sent], the guess of least mean squared error."""
        weights = self.posterior.to(self.inputs)
        return torch.einsum("k,k...->...", weights, self.inputs)

    def error(self, truth: Tensor) -> float:
        """The squared error of the mean, per entry; of tokens the share that is wrong, on average.

        >>> ids = Identification(torch.zeros(2), torch.tensor([[1, 2], [1, 3]]))
        >>> ids.error(torch.tensor([1, 3]))
        0.25
        """
        if self.inputs.is_floating_point():
            return float((self.mean - truth).double().square().mean())
        wrong = (self.inputs != truth).flatten(1).double().mean(1)
        return float((self.posterior.to(wrong) * wrong).sum())

    @property
    def entropy(self) -> float:
        """Of the posterior in bits: 0 if it is sure, log₂ N if it knows nothing."""
        return float(torch.special.entr(self.posterior).sum()) / math.log(2)

    @property
    def bits(self) -> float:
        """What the message told: log₂ N minus the entropy."""
        return max(0.0, math.log2(len(self.log_likelihoods)) - self.entropy)

    def rank(self, truth: int) -> float:
        """The place of the true candidate, 1 if it is the most likely; equal ones share theirs."""
        check_number(truth, "truth")
        if not 0 <= truth < len(self.log_likelihoods):
            raise ValueError(
                "Parameter `truth` should be the index of a candidate, from 0 to"
                f" {len(self.log_likelihoods) - 1}. Found `truth = {truth}`. Where the truth is no"
                " candidate, it has no rank; use `mean` and `entropy`."
            )
        own = self.log_likelihoods[truth]
        above = int((self.log_likelihoods > own).sum())
        equal = int((self.log_likelihoods == own).sum())
        return 1 + above + (equal - 1) / 2

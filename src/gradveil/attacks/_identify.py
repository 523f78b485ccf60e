"""The attacker that is Bayes-optimal over a finite set of candidates."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import WrongValue, check_inputs, check_labels, check_pair, check_targets
from gradveil._random import generator_or_fresh
from gradveil._tensors import Tensors
from gradveil.defenses import Defended
from gradveil.messages import gradient_of, values_of

from ._likelihood import Doubt, doubt_between, log_likelihoods, same_noise
from ._observation import Observation, check_known, check_observation


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
    """log p(sent | candidate), one for each."""
    inputs: Tensor
    """The candidates themselves."""

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
    def bits(self) -> float:
        """What the message told: log₂ N minus the entropy of the posterior."""
        entropy = float(torch.special.entr(self.posterior).sum()) / math.log(2)
        return max(0.0, math.log2(len(self.log_likelihoods)) - entropy)

    def rank(self, truth: int) -> float:
        """The place of the true candidate, 1 if it is the most likely; equal ones share theirs."""
        if not 0 <= truth < len(self.log_likelihoods):
            expected = f"be the index of a candidate, below {len(self.log_likelihoods)}"
            advice = "Where the truth is no candidate, it has no rank; use `mean` and `bits`."
            raise WrongValue("truth", expected, str(truth), advice, assigned=True)
        others, own = self.log_likelihoods, self.log_likelihoods[truth]
        return 0.5 + int((others > own).sum()) + int((others == own).sum()) / 2


PAIRS = 8
"""Candidates at which the attacker plans twice, to see how far two plans are apart."""

NUMBERS = 2**24
"""Up to how many numbers the messages of several candidates have that are held at a time."""


@dataclass(frozen=True)
class Identify:
    """Which candidate was in the batch: p(candidate | sent) ∝ p(sent | candidate), exactly.

    The informed attacker of differential privacy: it knows all other examples of the batch, the
    model, the defense and its settings. Its candidates are public examples; the truth may be among
    them or not. Nothing is optimised: one message for each candidate, and the likelihood of what
    was sent under the mechanism. So no attacker with the same knowledge is right more often, as far
    as the likelihood is exact.

    Where the plan comes from the private batch, it is evidence: the attacker plans at each
    candidate's batch with probes of its own, and log p_k = -½ Σ_i ((y_i - g_ki)² / Σ_ki + log Σ_ki)
    has the log-determinant. With estimated sensitivities it is an estimate, and one who measures
    them better can be right a little more often. How far two plans from one batch are apart is
    measured at eight candidates (`Doubt`): levels that differ make the normal densities Student's,
    a mask that differs has a probability for an entry to be on the other side, steps of rounding
    are log-normal. Isotropic noise and magnitude pruning have no such doubt.

    Args:
        candidates: The inputs, and the label of each: one of them is the batch's first example.
        rest: The other examples in the client's order, and their labels.

    >>> model, labels = torch.nn.Linear(3, 2), torch.tensor([0, 0])
    >>> images = torch.tensor([[1.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    >>> observation = observe(
    ...     model, cross_entropy, (images[1:], labels[1:]),
    ...     GradientNoise(1e-3), threat=ThreatModel(mechanism="known"), num_classes=2)
    >>> Identify((images, labels))(observation).best
    1
    """

    candidates: tuple[Tensor, Tensor]
    rest: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        inputs, targets = check_pair(self.candidates, "candidates")
        tokens = gradient_of(inputs).takes_tokens
        for name, pair in (("candidates", (inputs, targets)), ("rest", self.rest)):
            if pair is not None:
                known, labels = check_pair(pair, name)
                check_inputs(known, name, tokens=tokens)
                if check_targets(labels, len(known), name) == "classification":
                    check_labels(labels, name)

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Identification:
        """The posterior; the observation's defense or mechanism must be known."""
        return self.many([observation], generator)[0]

    def many(
        self, observations: Sequence[Observation], generator: torch.Generator | None = None
    ) -> list[Identification]:
        """The posteriors for several observations of one model, defense and rest of the batch.

        Each candidate is evaluated once for all of them.
        """
        inputs, size = self.candidates[0], 1 + (0 if self.rest is None else len(self.rest[0]))
        shape = tuple(inputs.shape[1:])
        for seen in observations:
            check_observation(seen, tokens=gradient_of(inputs).takes_tokens)
            if (shape, size) != (tuple(seen.input_shape), seen.batch_size):
                fitting = f"{seen.batch_size} examples of shape {tuple(seen.input_shape)}"
                expected = f"fit the observation of {fitting}, and so should `rest`"
                found = f"candidates of shape {shape} beside {size - 1} other examples"
                raise WrongValue("candidates", expected, found)
        if not observations:
            return []
        generator = generator_or_fresh(generator)
        if any(seen.mechanism is None for seen in observations):
            table = self._planned(observations, generator)
        else:
            table = self._known(observations)
        return [Identification(row, inputs) for row in table]

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        """The whole batch with this candidate at its first place."""
        inputs, targets = (each[index : index + 1] for each in self.candidates)
        if self.rest is None:
            return inputs, targets
        return torch.cat([inputs, self.rest[0]]), torch.cat([targets, self.rest[1]])

    def values(self, observation: Observation) -> Iterator[Tensors]:
        """The undefended message with each candidate, one after the other."""
        for index in range(len(self.candidates[0])):
            inputs, targets = self.batch(index)
            yield values_of(observation.message(targets), inputs)

    def _known(self, observations: Sequence[Observation]) -> Tensor:
        """log p(sent | candidate), a row for each observation and a column for each candidate.

        Some candidates at a time: memory for few messages beside those that were sent.
        """
        columns, sent = list[Tensor](), [seen.sent for seen in observations]
        plans: list[tuple[Any, list[int]]] = []
        for row, seen in enumerate(observations):
            rows = next((rows for plan, rows in plans if same_noise(plan, seen.mechanism)), [])
            if not rows:
                plans.append((seen.mechanism, rows))
            rows.append(row)
        count = max(1, NUMBERS // sum(value.numel() for value in sent[0].values()))
        each = self.values(observations[0])
        while values := list(islice(each, count)):
            columns.append(torch.empty(len(sent), len(values), dtype=torch.float64))
            for plan, rows in plans:
                columns[-1][rows] = log_likelihoods(plan, values, [sent[r] for r in rows]).cpu()
        return torch.cat(columns, 1)

    def _planned(self, observations: Sequence[Observation], generator: torch.Generator) -> Tensor:
        """The same with the plan that each candidate leads to, by the attacker's own probes."""
        first, count = observations[0], len(self.candidates[0])
        check_known(first)
        defense = first.defense
        assert defense is not None

        def defended(index: int) -> Defended:
            inputs, targets = self.batch(index)
            message = first.plain_message(targets)
            return defense.without_memory().respond(message, inputs, generator)

        planned, doubts = dict[int, Defended](), list[Doubt]()
        for index in (place * count // PAIRS for place in range(PAIRS)):
            one, other = defended(index), defended(index)
            planned[index] = one
            doubts.append(doubt_between(one.mechanism, other.mechanism, one.values))
            if not doubts[0].levels_differ:
                break
        doubt, columns = Doubt.mean(doubts), list[Tensor]()
        for index in range(count):
            step = planned.get(index) or defended(index)
            sent = [seen.sent for seen in observations]
            columns.append(log_likelihoods(step.mechanism, [step.values], sent, doubt).cpu())
        return torch.cat(columns, 1)

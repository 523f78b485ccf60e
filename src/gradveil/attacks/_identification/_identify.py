"""The attacker that is Bayes-optimal over a finite set of candidates."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from gradveil._batches import check_labels, check_pair, check_targets
from gradveil._checks import check_choice, check_inputs
from gradveil._random import generator_or_fresh
from gradveil.messages import gradient_of

from .._observation import Observation, check_observation
from ._candidates import Candidates
from ._identification import Identification
from ._likelihoods import likelihood_table

LABELS = ("known", "unknown")


@dataclass(frozen=True)
class Identify:
    """Which candidate was in the batch: p(candidate | sent) ∝ p(sent | candidate), exactly.

    The informed attacker of differential privacy: it knows all other examples of the batch, the
    model, the defense and its settings. Its candidates are public examples; the truth may be among
    them or not. Nothing is optimised: one message for each candidate, and the likelihood of what
    was sent under the mechanism. So no attacker with the same knowledge is right more often, as far
    as the likelihood is exact: of a plan from the private batch with estimated sensitivities it is
    an estimate, and one who measures them better can be right a little more often.

    - A mechanism that is told (`observation.mechanism`), or that does not depend on the batch, is
      the same for all candidates.
    - Where the plan comes from the private batch, it is evidence. The attacker plans at each
      candidate's batch with probes of its own, and counts the log-determinant,
      log p_k = -½ Σ_i ((y_i - g_ki)² / Σ_ki + log Σ_ki).
    - Sensitivities are estimates, the client's and the attacker's own. How far two plans from one
      batch are apart is measured at eight candidates (`Doubt`): levels that differ make the normal
      densities Student's, a mask that differs has a probability for an entry to be on the other
      side, steps of rounding are log-normal. What can be computed exactly (isotropic noise,
      magnitude pruning) has no such doubt.
    - Entries without noise, and cells of rounding, are compared up to rounding errors.

    Args:
        candidates: The inputs, and the label of each; with `None` for the labels, all have the one
            that the observation tells for that place.
        rest: The inputs and labels of the other examples in the client's order; `None` if there
            are none.
        labels: "known", or "unknown": each candidate may have any label, and the likelihood is the
            mean over all classes.
        position: The place of the candidate in the batch.

    >>> from gradveil import GradientNoise, ThreatModel
    >>> from gradveil.attacks import observe
    >>> model, labels = torch.nn.Linear(3, 2), torch.tensor([0, 0])
    >>> images = torch.tensor([[1.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    >>> observation = observe(
    ...     model, torch.nn.functional.cross_entropy, (images[1:], labels[1:]),
    ...     GradientNoise(1e-3), threat=ThreatModel(mechanism="known"), num_classes=2)
    >>> Identify((images, labels))(observation).best
    1
    """

    candidates: tuple[Tensor, Tensor | None]
    rest: tuple[Tensor, Tensor] | None = None
    _: KW_ONLY
    labels: str = "known"
    position: int = 0

    def __post_init__(self) -> None:
        inputs, targets = check_pair(self.candidates, "candidates")
        tokens = gradient_of(inputs).takes_tokens
        check_inputs(inputs, "candidates", tokens=tokens)
        if targets is not None:
            _check_labels(targets, len(inputs), "candidates")
        others = 0
        if self.rest is not None:
            known, labels = check_pair(self.rest, "rest")
            check_inputs(known, "rest", tokens=tokens)
            _check_labels(labels, len(known), "rest")
            others = len(known)
        check_choice(self.labels, "labels", LABELS)
        if isinstance(self.position, bool) or self.position not in range(others + 1):
            raise ValueError(
                f"Parameter `position` should be a place in a batch of {others + 1}, from 0 to"
                f" {others}. Found `position = {self.position}`."
            )

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Identification:
        """The posterior given one observation whose defense or mechanism is known."""
        return self.many([observation], generator)[0]

    def many(
        self, observations: Sequence[Observation], generator: torch.Generator | None = None
    ) -> list[Identification]:
        """The posteriors for several observations of one model, defense and rest of the batch.

        Each candidate is evaluated once for all of them.
        """
        for observation in observations:
            self._check(observation)
        if not observations:
            return []
        generator = generator_or_fresh(generator)
        targets = self._targets(observations[0])
        count, classes = targets.shape[:2]
        hypotheses = Candidates(
            observations[0],
            self.candidates[0].repeat_interleave(classes, 0),
            targets.flatten(0, 1),
            self.rest,
            self.position,
        )
        tables = likelihood_table(observations, hypotheses, generator)
        tables = tables.view(len(observations), count, classes)
        return [self._found(table, targets) for table in tables]

    def _found(self, table: Tensor, targets: Tensor) -> Identification:
        """From log-likelihoods by candidate and label."""
        classes = table.new_tensor(float(table.shape[1]))
        likely = table.argmax(1).to(targets.device)
        most_likely = targets[torch.arange(len(targets), device=targets.device), likely]
        return Identification(table.logsumexp(1) - classes.log(), self.candidates[0], most_likely)

    def _targets(self, observation: Observation) -> Tensor:
        """The labels that each candidate may have, a row for each."""
        inputs, targets = self.candidates
        if self.labels == "unknown":
            if observation.task != "classification":
                raise ValueError(
                    "Parameter `labels` should be 'known' where targets are not one class label"
                    f" for each example. Found 'unknown' with {observation.task}."
                )
            every = torch.arange(observation.num_classes, device=inputs.device)
            return every.expand(len(inputs), -1)
        if targets is not None:
            return targets.unsqueeze(1)
        if observation.labels is None:
            raise ValueError(
                "Parameter `candidates` should hold labels where the observation tells none. Found"
                " `None`. Give them, or use labels='unknown'."
            )
        own = observation.labels[self.position].to(inputs.device)
        return own.expand(len(inputs), 1, *own.shape)

    def _check(self, observation: Any) -> None:
        check_observation(observation, tokens=gradient_of(self.candidates[0]).takes_tokens)
        shape = tuple(self.candidates[0].shape[1:])
        size = 1 + (0 if self.rest is None else len(self.rest[0]))
        if shape != tuple(observation.input_shape) or size != observation.batch_size:
            raise ValueError(
                "Parameters `candidates` and `rest` should fit the observation, of"
                f" {observation.batch_size} examples of shape {tuple(observation.input_shape)}."
                f" Found candidates of shape {shape} beside {size - 1} other examples."
            )


def _check_labels(labels: Any, count: int, name: str) -> None:
    if check_targets(labels, count, name) == "classification":
        check_labels(labels, name)

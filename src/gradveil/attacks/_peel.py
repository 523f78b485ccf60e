"""Peeling: the head of a model is solved first, then the inputs from its features."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_count, check_not_negative, check_positive
from gradveil._random import generator_or_fresh, normal_like
from gradveil._tensors import relative_misfit

from ._attack import Attack, Progress
from ._evidence import Evidence, TotalVariation, total_variation
from ._observation import Observation
from ._reconstruction import FINISHED, INTERRUPTED, Reconstruction
from ._search import (
    Cost,
    Descent,
    Head,
    Minimum,
    Objective,
    SmoothTwin,
    Watch,
    clamp,
    features_of,
    head_of,
    labels_of,
    message_of,
    minimise,
    noise_start,
    refine,
    sent_row,
)

SOLVED = 1e-3
"""The relative misfit of the head's equations that counts as 0."""
FOUND = 1e-6
"""That of an image's features, relative to a start from noise; wrong minima have 1e-4 and more."""
NEAR = 0.1
"""The relative misfit of the message above which the inputs are taken not to be found."""
STARTS = 64


@dataclass(frozen=True)
class Peel(Attack):
    """Exact features of a batch from the gradient of the head, then images from their features.

    1. U, the outputs of the first linear layer, from the head's own equations (`Head`): a problem
       of a few hundred variables, for which many starts cost less than one step on the images.
    2. The features H = Δ⁺ ∂L/∂W with Δ the gradients with respect to U.
    3. Inputs with these features, each image by itself: min ‖h(x) - H‖² + a little total variation.

    Repeated labels do not matter. It needs a message without noise and with all entries, and a
    batch smaller than the layer's width; elsewhere it finds nothing.

    Args:
        steps: Of the head's descent.
        image_steps: Of one descent of the images.
        rounds: How often images that were not found start again.
        total_variation: Its weight in step 3, beside the relative misfit of the features.
        time_budget: Seconds after which the best so far is returned; `None`: no limit.
        progress: Called with (step, steps, cost) of the head's descent.
    """

    steps: int = 1000
    image_steps: int = 400
    rounds: int = 10
    total_variation: float = 1e-5
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_count(self.steps, "steps")
        check_count(self.image_steps, "image_steps")
        check_count(self.rounds, "rounds")
        check_positive(self.total_variation, "total_variation")
        if self.time_budget is not None:
            check_not_negative(self.time_budget, "time_budget")

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; its best guess, whose `loss` is the relative misfit of the message.

        A message that does not determine the head is an error.
        """
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        labels = labels_of(observation, generator)
        head = head_of(observation, generator)
        if head is None:
            raise ValueError(
                "Parameter `observation` should be of a gradient without noise and with all"
                " entries, of a model with a linear layer that is wider than the batch and through"
                " which all information flows. Found a message that does not determine the layer's"
                " outputs. Use `InvertingGradients`."
            )
        return self._guess(head, observation, labels, generator, watch, self.progress)[0]

    def solve(
        self,
        observation: Observation,
        labels: Tensor,
        generator: torch.Generator,
        watch: Watch,
        progress: Progress | None = None,
    ) -> Reconstruction | None:
        """The batch; `None` where the head is not determined, or its solution not found."""
        head = head_of(observation, generator)
        if head is None:
            return None
        guess, solved = self._guess(head, observation, labels, generator, watch, progress)
        if guess.status == INTERRUPTED:
            return guess
        missed = guess.status == FINISHED and guess.loss > NEAR
        return guess if solved and not missed else None

    def _guess(
        self,
        head: Head,
        observation: Observation,
        labels: Tensor,
        generator: torch.Generator,
        watch: Watch,
        progress: Progress | None,
    ) -> tuple[Reconstruction, bool]:
        """The best guess, and whether the head was solved; noise if it was not."""
        outputs, status = _solve_head(head, labels, self.steps, generator, watch, progress)
        inputs = noise_start(observation, 1, generator)[0]
        solved = status == FINISHED and outputs is not None
        if solved and outputs is not None:
            features = _features(head, outputs, labels).to(inputs)
            inputs, status = self._invert(head, observation, features, generator, watch)
        inputs = clamp(inputs, observation.low, observation.high)
        message = message_of(observation)(inputs, labels)
        own = float(relative_misfit(message, sent_row(observation)))
        return Reconstruction(inputs, labels, own, [(self.steps, own)], status), solved

    def _invert(
        self,
        head: Head,
        observation: Observation,
        features: Tensor,
        generator: torch.Generator,
        watch: Watch,
    ) -> tuple[Tensor, str]:
        """The inputs with these features: new starts for those images that are not yet found."""
        own, best = features_of(head.name, observation), noise_start(observation, 1, generator)[0]
        with torch.no_grad():
            spread = (own(best) - features).square().sum() / len(features)
        misfits, status = torch.full_like(features[:, 0], torch.inf), FINISHED
        for _ in range(self.rounds):
            open_ = misfits > FOUND
            if status != FINISHED or not bool(open_.any()):
                break
            start = noise_start(observation, 1, generator)[:, open_]
            minimum = self._descend(head, observation, features[open_], spread, start, watch)
            status = minimum.status
            with torch.no_grad():
                errors = (own(minimum.inputs[0]) - features[open_]).square().sum(1) / spread
            places = open_.nonzero().flatten()[errors < misfits[open_]]
            best[places] = minimum.inputs[0][errors < misfits[open_]]
            misfits[places] = errors[errors < misfits[open_]]
        return best, status

    def _descend(
        self,
        head: Head,
        observation: Observation,
        features: Tensor,
        spread: Tensor,
        start: Tensor,
        watch: Watch,
    ) -> Minimum:
        twin = SmoothTwin(observation, 1.0)
        smooth = features_of(head.name, twin.observation)

        def cost(inputs: Tensor, progress: float) -> Tensor:
            twin.set_width(0.1 * 0.01**progress)
            misfit = (smooth(inputs) - features).square().sum() / spread
            weight: float = 1e-2 * (self.total_variation / 1e-2) ** progress
            return misfit + weight * len(features) * total_variation(inputs)

        rate = 1.0 if observation.low is None else float(_width(observation)) / 3
        descent = Descent(
            self.image_steps, rate, "adam", "cosine",
            time_budget=watch.left(), settled=1.0,
        )  # fmt: skip
        return minimise(cost, start, descent, low=observation.low, high=observation.high)


def _width(observation: Observation) -> Tensor:
    """The mean width of the inputs' range."""
    assert observation.low is not None
    assert observation.high is not None
    width: Tensor = observation.high - observation.low
    return width.mean()


def _solve_head(
    head: Head,
    labels: Tensor,
    steps: int,
    generator: torch.Generator,
    watch: Watch,
    progress: Progress | None,
) -> tuple[Tensor | None, str]:
    """U from many starts around what random inputs give."""
    equations = _Equations(head, labels)
    scale = float(head.outputs.square().mean().sqrt())
    blank = head.outputs.new_empty(STARTS, len(labels), head.outputs.shape[1])
    start = head.outputs.mean(0) + scale * normal_like(blank, generator)
    descent = Descent(steps, scale / 8, "adam", "cosine", time_budget=watch.left(), settled=0.9)
    minimum = minimise(_annealed(equations, head, scale), start, descent, progress=progress)
    head.twin.set_width(1e-4 * scale)
    best = minimum.inputs[int(minimum.costs.argmin())]
    objective = Objective(equations, equations.evidence, TotalVariation(0.0))
    refined = refine(objective, best, steps=10, products=100, watch=watch, tolerance=1e-3)
    status = minimum.status if minimum.status != FINISHED else refined.status
    return (refined.inputs if refined.cost < SOLVED else None), status


def _annealed(equations: "_Equations", head: Head, scale: float) -> Cost:
    def cost(outputs: Tensor, progress: float) -> Tensor:
        head.twin.set_width(scale * 1e-3 ** min(1.0, progress / 0.9))
        return equations.evidence.misfit(equations(outputs))

    return cost


class _Equations:
    """The head's equations in one row, each block relative to its own size."""

    def __init__(self, head: Head, labels: Tensor) -> None:
        self.head, self.labels = head, labels
        weight = head.sent("weight")
        assert weight is not None
        self.layer = head.layer.weight.detach()
        self.offset = 0.0 if head.layer.bias is None else head.layer.bias.detach()
        left = torch.linalg.svd(weight, full_matrices=True)[0]
        self.outside = left[:, len(labels) :]
        self.evidence = self._evidence(weight)

    def __call__(self, outputs: Tensor) -> Tensor:
        later, delta = self.head.gradients(outputs, self.labels)
        blocks = [later[name] for name in self.head.later]
        if self.head.sent("bias") is not None:
            blocks.append(delta.sum(0))
        blocks += [delta.T @ (outputs - self.offset), delta @ self.outside]
        return torch.cat([block.flatten() for block in blocks])

    def _evidence(self, weight: Tensor) -> Evidence:
        blocks = [self.head.observation.sent[name] for name in self.head.later]
        bias = self.head.sent("bias")
        if bias is not None:
            blocks.append(bias)
        blocks.append(weight @ self.layer.T)
        weights = [torch.full_like(b, 2 / float(b.square().sum())).flatten() for b in blocks]
        beside = weight.new_zeros(len(self.labels) * self.outside.shape[1])
        target = torch.cat([*(b.flatten() for b in blocks), beside])
        weights.append(torch.full_like(beside, 2 / float(self._delta_power())))
        return Evidence(target, target, torch.cat(weights))

    def _delta_power(self) -> Tensor:
        """‖Δ‖² at random outputs, the unit of what lies outside of the column space."""
        count = len(self.labels)
        delta = self.head.gradients(self.head.outputs[:1].expand(count, -1), self.labels)[1]
        return delta.square().sum()


def _features(head: Head, outputs: Tensor, labels: Tensor) -> Tensor:
    """H = Δ⁺ ∂L/∂W."""
    delta, weight = head.gradients(outputs, labels)[1], head.sent("weight")
    assert weight is not None
    features: Tensor = torch.linalg.pinv(delta.T) @ weight
    return features

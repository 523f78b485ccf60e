"""Peeling: the head of a model is solved first, then the inputs from its features."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil._checks import check_count, check_not_negative, check_positive
from gradveil._random import generator_or_fresh
from gradveil._tensors import relative_misfit

from .._attack import Attack, Progress
from .._evidence import random_inputs, total_variation
from .._observation import Observation
from .._reconstruction import FINISHED, INTERRUPTED, Reconstruction
from .._search import (
    ROUGH,
    Descent,
    Head,
    Minimum,
    SmoothTwin,
    Watch,
    clamp,
    determined_share,
    features_from,
    features_noise,
    features_of,
    head_of,
    labels_of,
    message_of,
    minimise,
    noise_start,
    sent_row,
)
from ._solve_head import solve_head

FOUND = 1e-6
"""That of an image's features, relative to random inputs', from which on it is not tried again."""
CLOSE = 1e-3
"""The same, from which on an image counts as found."""
NEAR = 0.1
"""The misfit of the message, over the least of some random batches', where a guess may be right."""
RANDOM = 8
"""How many random inputs, or batches of them, a guess is compared with."""
DETERMINED, WORTH = 0.99, 0.5
"""The share of an input that the features show (`determined_share`) where they determine it, and
where finding it is tried at all."""
AGAIN = 2
"""Rounds for noisy features, at most."""
ROUGH_SHARE = 0.4
"""Of the time, for heads with noise and for those of updates: their guesses are rough, or take so
long that a short budget does not see their end, and a descent needs the rest."""


@dataclass(frozen=True)
class Peeled:
    """What peeling found."""

    guess: Reconstruction
    solved: bool
    """Whether the head was, so that the guess is more than noise."""
    sure: bool
    """Whether the guess is known to be right: nothing else is then to be tried."""


@dataclass(frozen=True)
class Peel(Attack):
    """Exact features of a batch from the gradient of the head, then images from their features.

    1. U, the outputs of the first linear layer, from the head's own equations (`Head`): a problem
       of a few hundred variables, for which many starts cost less than one step on the images.
    2. The features H = Δ⁺ ∂L/∂W with Δ the gradients with respect to U.
    3. Inputs with these features, each image by itself: min ‖h(x) - H‖² + a little total variation.

    Repeated labels do not matter. It needs a message with all entries, and a batch smaller than the
    layer's width; elsewhere it finds nothing. A little noise or rounding, which leaves the rank of
    ∂L/∂W visible, is averaged over the layer's units: the guess is then rough, and step 3 weighs
    total variation by what is known of the features' noise.

    Args:
        steps: Of the head's descent.
        image_steps: Of one descent of the images.
        rounds: How often images that were not found start again.
        total_variation: Its weight in step 3, beside the relative misfit of the features.
        time_budget: Seconds after which the best so far is returned; `None`: no limit.
        progress: Called with (step, steps, cost) of the head's descent.

    >>> Peel(rounds=2).steps
    1000
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
        head = head_of(observation, generator, ROUGH)
        if head is None:
            raise ValueError(
                "Parameter `observation` should be of a gradient with next to no noise and all"
                " entries, of a model with a linear layer that is wider than the batch and through"
                " which all information flows. Found a message that does not determine the layer's"
                " outputs. Use `InvertingGradients`."
            )
        return self._guess(head, observation, labels, generator, watch, self.progress).guess

    def solve(
        self,
        observation: Observation,
        labels: Tensor,
        generator: torch.Generator,
        watch: Watch,
        progress: Progress | None = None,
        known: Tensor | None = None,
    ) -> "Peeled | None":
        """The batch; `None` where the head is not determined, or shows too little of the inputs.

        `known` are the outputs of its first layer where they have been solved before.
        """
        head = head_of(observation, generator, ROUGH)
        if head is None:
            return None
        own = features_of(head.name, observation)
        share = determined_share(own, random_inputs(observation, 2, generator), generator)
        if share < WORTH:
            return None
        rounds = self.rounds if head.noise == 0 else min(AGAIN, self.rounds)
        watch = watch if head.noise == 0 else watch.part(ROUGH_SHARE)
        peel = replace(self, rounds=rounds if share >= DETERMINED else 1)
        found = peel._guess(head, observation, labels, generator, watch, progress, known)
        found = replace(found, sure=found.sure and share >= DETERMINED)
        return found if found.solved or found.guess.status == INTERRUPTED else None

    def _guess(
        self,
        head: Head,
        observation: Observation,
        labels: Tensor,
        generator: torch.Generator,
        watch: Watch,
        progress: Progress | None,
        known: Tensor | None = None,
    ) -> "Peeled":
        """The best guess; noise where the head was not solved."""
        outputs, status = known, FINISHED
        head.sharpen()
        if known is None:
            outputs, status = solve_head(head, labels, self.steps, generator, watch, progress)
        inputs, most = noise_start(observation, 1, generator)[0], False
        solved = status == FINISHED and outputs is not None
        if solved and outputs is not None:
            features = features_from(head, outputs, labels).to(inputs)
            noise = features_noise(head, outputs, labels).to(inputs)
            inputs, misfits, status = self.invert(
                head.name, observation, features, noise, generator, watch
            )
            most = 2 * int((misfits < CLOSE).sum()) > len(misfits)
        inputs = clamp(inputs, observation.low, observation.high)
        own = message_misfit(observation, inputs, labels)
        guess = Reconstruction(inputs, labels, own, [(self.steps, own)], status)
        sure = (
            head.noise == 0 and most and own < NEAR * random_misfit(observation, labels, generator)
        )
        return Peeled(guess, solved, sure and status == FINISHED)

    def invert(
        self,
        name: str,
        observation: Observation,
        features: Tensor,
        noise: Tensor,
        generator: torch.Generator,
        watch: Watch,
    ) -> tuple[Tensor, Tensor, str]:
        """Inputs with these features and their misfits; new starts for images not yet found.

        `name` is the layer that reads the features, `noise` the squared error that each image's
        features have.
        """
        own, best = features_of(name, observation), noise_start(observation, 1, generator)[0]
        with torch.no_grad():
            others = own(random_inputs(observation, RANDOM, generator))
            spread = (others[:, None] - features).square().sum(2).mean(0)
            unit = (own(best) - features).square().sum(1).mean()
        misfits, status = torch.full_like(spread, torch.inf), FINISHED
        peel = self._knowing(float(noise.mean() / unit) * best[0].numel() / features.shape[1])
        for _ in range(self.rounds):
            open_ = misfits > FOUND + noise / spread
            if status != FINISHED or not bool(open_.any()):
                break
            start = noise_start(observation, 1, generator)[:, open_]
            minimum = peel._descend(name, observation, features[open_], unit, start, watch)
            status = minimum.status
            with torch.no_grad():
                gaps = (own(minimum.inputs[0]) - features[open_]).square().sum(1)
            errors = gaps / spread[open_]
            places = open_.nonzero().flatten()[errors < misfits[open_]]
            best[places] = minimum.inputs[0][errors < misfits[open_]]
            misfits[places] = errors[errors < misfits[open_]]
        return best, misfits, status

    def _knowing(self, noise: float) -> "Peel":
        """With total variation as for differences of 1, under noise of so much for each entry."""
        return replace(self, total_variation=max(self.total_variation, min(2 * noise, 1e-2)))

    def _descend(
        self,
        name: str,
        observation: Observation,
        features: Tensor,
        unit: Tensor,
        start: Tensor,
        watch: Watch,
    ) -> Minimum:
        """First-order steps of images towards their features; the unit is of squared distances."""
        twin = SmoothTwin(observation, 1.0)
        smooth = features_of(name, twin.observation)

        def cost(inputs: Tensor, progress: float) -> Tensor:
            twin.set_width(0.1 * 0.01**progress)
            misfit = (smooth(inputs) - features).square().sum() / unit
            weight: float = 1e-2 * (self.total_variation / 1e-2) ** progress
            return misfit + weight * len(inputs) * total_variation(inputs)

        rate = 1.0 if observation.low is None else float(_width(observation)) / 3
        descent = Descent(
            self.image_steps, rate, "adam", "cosine",
            time_budget=watch.left(), settled=1.0,
        )  # fmt: skip
        return minimise(cost, start, descent, low=observation.low, high=observation.high)


def message_misfit(observation: Observation, inputs: Tensor, labels: Tensor) -> float:
    """Of the message, relative to its size."""
    with torch.no_grad():
        message = message_of(observation)(inputs, labels)
        return float(relative_misfit(message, sent_row(observation)))


def random_misfit(observation: Observation, labels: Tensor, generator: torch.Generator) -> float:
    """The least misfit of the message that one of a few random batches has."""
    others = random_inputs(observation, RANDOM * len(labels), generator).split(len(labels))
    return min(message_misfit(observation, other, labels) for other in others)


def _width(observation: Observation) -> Tensor:
    """The mean width of the inputs' range."""
    assert observation.low is not None
    assert observation.high is not None
    width: Tensor = observation.high - observation.low
    return width.mean()

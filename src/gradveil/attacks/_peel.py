"""Peeling: the head of a model is solved first, then the inputs from its features."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil._checks import WrongValue

from ._attack import (
    FINISHED,
    INTERRUPTED,
    TIME_BUDGET,
    Attack,
    Progress,
    Reconstruction,
    check_settings,
)
from ._descent import Descent, Minimum, minimise
from ._head import ROUGH, Head, head_of, solve_head
from ._local_head import SOLVED, LocalHead, LocalSearch, Training, Visits
from ._model_layers import SmoothTwin, determined_share, features_of, random_inputs
from ._observation import Observation
from ._priors import total_variation
from ._targets import Run

FOUND = 1e-6
"""That of an image's features, relative to random inputs', from which on it is not tried again."""
CLOSE = 1e-3
"""The same, from which on an image counts as found."""
NEAR = 0.1
"""The misfit of the message, over the least of some random batches', where a guess may be right."""
DETERMINED, WORTH = 0.99, 0.5
"""The share of an input that the features show (`determined_share`) where they determine it, and
where finding it is tried at all."""
ROUGH_SHARE = 0.4
"""Of the time, for heads with noise and for those of updates: their guesses are rough, or take so
long that a short budget does not see their end, and a descent needs the rest."""


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

    Of FedAvg's weight change the head is solved along all local steps (`LocalHead`), if its batch
    is visited by so few that the change shows the rank. Images from its features, trained again,
    tell where to start the next of up to six passes, until no residual is left.

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
        counts = ("steps", "image_steps", "rounds")
        check_settings(self, counts=counts, positive=("total_variation",))

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; its best guess, whose `loss` is the relative misfit of the message.

        A message that does not determine the head is an error.
        """
        run = Run.of(self, observation, generator)
        head = None if observation.local else head_of(observation, run.generator, ROUGH)
        guess = self._solve_local(run) if head is None else self._guess(head, run)[0]
        if guess is None:
            raise WrongValue(
                "observation",
                "be of a gradient with next to no noise and all entries, of a model with a linear"
                " layer that is wider than the batch and through which all information flows",
                "a message that does not determine the layer's outputs",
                "Use `InvertingGradients`.",
            )
        return guess

    def solve(self, run: Run, known: Tensor | None = None) -> Reconstruction | None:
        """The batch; `None` where the head is not determined, or shows too little of the inputs.

        `known` are the outputs of its first layer where they have been solved before.
        """
        if run.observation.local is not None:
            return self._solve_local(run)
        head = head_of(run.observation, run.generator, ROUGH)
        share = 0.0 if head is None else shown_share(head, run)
        if head is None or share < WORTH:
            return None
        rounds = self.rounds if head.noise == 0 else min(2, self.rounds)
        watch = run.watch if head.noise == 0 else run.watch.part(ROUGH_SHARE)
        peel = replace(self, rounds=rounds if share >= DETERMINED else 1)
        guess, solved = peel._guess(head, replace(run, watch=watch), known)
        guess = replace(guess, is_certain=guess.is_certain and share >= DETERMINED)
        return guess if solved or guess.status == INTERRUPTED else None

    def _solve_local(self, run: Run) -> Reconstruction | None:
        """The batch behind FedAvg's weight change; `None` where its head is not determined."""
        seen = run.observation
        visits = None if seen.local is None else Visits.of(seen.local, seen.batch_size)
        if visits is None or not visits.cover(seen.batch_size):
            return None
        head = head_of(seen, run.generator, visits=len(visits))
        if head is None or not head.is_all:
            return None
        share = shown_share(head, run)
        if share < WORTH:
            return None
        equations = LocalHead(head, run.labels, visits)
        if equations.unknowns > 3000:  # whole Jacobians take too much time and memory
            return None
        rough = replace(run, watch=run.watch.part(ROUGH_SHARE))
        training = Training(rough, visits, head.call.name)
        found = _Passes(self, LocalSearch(training, equations), rough).run()
        return found and replace(found, is_certain=found.is_certain and share >= DETERMINED)

    def _guess(
        self, head: Head, run: Run, known: Tensor | None = None
    ) -> tuple[Reconstruction, bool]:
        """The best guess, and whether the head was solved; noise where it was not."""
        outputs, status = known, FINISHED
        head.sharpen()
        if known is None:
            outputs, status = solve_head(head, run, self.steps)
        inputs, most = run.noise(), False
        solved = status == FINISHED and outputs is not None
        if solved and outputs is not None:
            features, noise = (part.to(inputs) for part in head.features(outputs, run.labels))
            inputs, misfits, status = self.invert(head.call.name, run, features, noise)
            most = 2 * int((misfits < CLOSE).sum()) > len(misfits)
        inputs = run.clamp(inputs)
        own = run.misfit(inputs)
        certain = head.noise == 0 and most and own < NEAR * run.random_misfit()
        certain = certain and status == FINISHED
        history = [(self.steps, own)]
        return Reconstruction(inputs, run.labels, own, history, status, certain), solved

    def invert(
        self, name: str, run: Run, features: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, str]:
        """Inputs with these features and their misfits; new starts for images not yet found.

        `name` is the layer that reads the features, `noise` the squared error that each image's
        features have.
        """
        own, best = features_of(name, run.observation), run.noise()
        with torch.no_grad():
            others = own(random_inputs(run.observation, 8, run.generator))
            spread = (others[:, None] - features).square().sum(2).mean(0)
            unit = (own(best) - features).square().sum(1).mean()
        misfits, status = torch.full_like(spread, torch.inf), FINISHED
        each = float(noise.mean() / unit) * best[0].numel() / features.shape[1]
        smooth = max(self.total_variation, min(2 * each, 1e-2))  # as for differences of 1
        for _ in range(self.rounds):
            open_ = misfits > FOUND + noise / spread
            if status != FINISHED or not bool(open_.any()):
                break
            start = run.noise()[None, open_]
            minimum = self._descend(name, run, features[open_], unit, start, smooth)
            status = minimum.status
            with torch.no_grad():
                gaps = (own(minimum.inputs[0]) - features[open_]).square().sum(1)
            errors = gaps / spread[open_]
            better = errors < misfits[open_]
            places = open_.nonzero().flatten()[better]
            best[places], misfits[places] = minimum.inputs[0][better], errors[better]
        return best, misfits, status

    def _descend(
        self, name: str, run: Run, features: Tensor, unit: Tensor, start: Tensor, smooth: float
    ) -> Minimum:
        """First-order steps of images towards their features; the unit is of squared distances."""
        seen = run.observation
        twin = SmoothTwin(seen, 1.0)
        twins = features_of(name, twin.observation)

        def cost(inputs: Tensor, progress: float) -> Tensor:
            twin.set_width(0.1 * 0.01**progress)
            misfit = (twins(inputs) - features).square().sum() / unit
            weight: float = 1e-2 * (smooth / 1e-2) ** progress
            return misfit + weight * len(inputs) * total_variation(inputs)

        known = seen.low is not None and seen.high is not None
        rate = float((seen.high - seen.low).mean()) / 3 if known else 1.0  # type: ignore[operator]
        left = run.watch.left()
        descent = Descent(self.image_steps, rate, "adam", "cosine", time_budget=left, settled=1.0)
        return minimise(cost, start, descent, low=seen.low, high=seen.high)


def shown_share(head: Head, run: Run) -> float:
    """How much of an input the features that the head reads determine (`determined_share`)."""
    own = features_of(head.call.name, run.observation)
    probe = random_inputs(run.observation, 2, run.generator)
    return determined_share(own, probe, run.generator)


@dataclass(frozen=True)
class _Passes:
    """From features along FedAvg's steps to images and back, until the equations hold."""

    peel: Peel
    search: LocalSearch
    work: Run

    def run(self) -> Reconstruction | None:
        """The best images by their message; `None` where time is over before there are any."""
        best: Reconstruction | None = None
        latest: Tensor | None = None
        count = max(1, min(6, self.peel.steps // 25))
        try:
            for number in range(count):
                guess = self._pass(latest, number, count)
                if guess is None:
                    return best and replace(best, status=TIME_BUDGET)
                if guess.is_certain:
                    return guess
                latest = guess.inputs
                best = guess if best is None or guess.loss < best.loss else best
                best = replace(best, status=guess.status)
                if guess.status != FINISHED or (number >= 2 and best.loss > 0.5):
                    break  # no more passes help
        except KeyboardInterrupt:
            best = best or self._guess(self.work.noise(), 0, FINISHED)
            return replace(best, status=INTERRUPTED)
        return best

    def _pass(self, latest: Tensor | None, number: int, count: int) -> Reconstruction | None:
        """One of them; `None` where time is over before there are images.

        An example of which a trained model is sure hardly shows in the message: for certainty each
        image must have its features, and the misfit be small by itself, too, not only beside that
        of random images.
        """
        places, cost = self.search.solve(latest)
        if self.work.watch.is_over():
            return None
        rough = replace(self.peel, rounds=2, image_steps=150, total_variation=1e-3)
        inputs, misfits, status = self._images(self.peel if cost < SOLVED else rough, places)
        guess = self._guess(inputs, number, status)
        if self.work.progress is not None:
            self.work.progress(number + 1, count, guess.loss)
        if cost >= SOLVED:
            return guess
        limit = min(1e-3, NEAR * self.work.random_misfit())
        found = status == FINISHED and bool((misfits < CLOSE).all())
        return replace(guess, is_certain=found and guess.loss < limit)

    def _images(self, peel: Peel, places: Tensor) -> tuple[Tensor, Tensor, str]:
        """Inputs with the features of their first visits, those of earlier steps first."""
        training, features = self.search.training, places @ self.search.local.basis
        inputs = self.work.noise()
        misfits, status = inputs.new_full((len(inputs),), torch.inf), FINISHED
        steps = zip(training.walk(inputs), training.visits.rows, strict=True)
        for (examples, parameters), own in steps:
            if status != FINISHED or bool(misfits[examples].isfinite().all()):
                break
            target, at = features[own].to(inputs), training.at(parameters, len(own))
            exact = target.new_zeros(len(own))
            inputs[examples], misfits[examples], status = peel.invert(
                training.layer, at, target, exact
            )
        return self.work.clamp(inputs), misfits, status

    def _guess(self, inputs: Tensor, number: int, status: str) -> Reconstruction:
        misfit = self.work.misfit(inputs)
        return Reconstruction(inputs, self.work.labels, misfit, [(number, misfit)], status)

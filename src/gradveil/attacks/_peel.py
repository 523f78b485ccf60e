"""Peeling: the head of a model is solved first, then the inputs from its features."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil._checks import WrongValue
from gradveil._random import normal_like
from gradveil._typing import Tensors

from ._attack import FINISHED, INTERRUPTED, TIME_BUDGET, Reconstruction
from ._descent import Descent
from ._head import SOLVED, LocalSearch
from ._model_layers import SmoothTwin, determined_share, features_of, random_inputs
from ._priors import total_variation
from ._targets import LabelledSearch, Run

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
class Peel(LabelledSearch):
    """Exact features of a batch from the gradient of the head, then images from their features.

    1. The features that the first linear layer reads, from the equations of it and of all layers
       after it (`Head`, `LocalHead`): a problem of a few hundred variables. FedAvg's weight change
       is solved along all local steps, if so few visit its batch that the change shows the rank.
    2. Inputs with these features, each image by itself: min ‖h(x) - H‖² + a little total variation.
    3. Where the equations have residuals left, these images tell where to start the next of up to
       six passes.

    Repeated labels do not matter. It needs a message with all entries, and a batch smaller than the
    layer's width; elsewhere it finds nothing. A little noise or rounding, which leaves the rank of
    ∂L/∂W visible, is averaged over the layer's units: the guess is then rough, and step 2 weighs
    total variation by what is known of the features' noise.

    Args:
        steps: 25 for each pass.
        image_steps: Of one descent of the images.
        rounds: How often images that were not found start again.
        total_variation: Its weight in step 2, beside the relative misfit of the features.

    >>> Peel(rounds=2).steps
    1000
    """

    steps: int = 1000
    image_steps: int = 400
    rounds: int = 10
    total_variation: float = 1e-5

    def search(self, run: Run) -> Reconstruction:
        """Its best guess, whose `loss` is the relative misfit of the message."""
        search = LocalSearch.of(run)
        if search is None:
            raise WrongValue(
                "observation",
                "be of a gradient with next to no noise and all entries, of a model with a linear"
                " layer that is wider than the batch and through which all information flows",
                "a message that does not determine the layer's outputs",
                "Use `InvertingGradients`.",
            )
        return self._guess(search) or run.blank(TIME_BUDGET)

    def solve(self, run: Run) -> Reconstruction | None:
        """The batch; `None` where the head is not determined, or shows too little of the inputs."""
        search = LocalSearch.of(run, ROUGH_SHARE)
        if search is None:
            return None
        own = features_of(search.local.head.call.name, run.observation)
        share = determined_share(
            own, random_inputs(run.observation, 2, run.generator), run.generator
        )
        if share < WORTH:
            return None
        peel = self if share >= DETERMINED else replace(self, rounds=1)
        guess = peel._guess(search)
        return guess and replace(guess, is_certain=guess.is_certain and share >= DETERMINED)

    def _guess(self, search: LocalSearch) -> Reconstruction | None:
        """The best images by their message, from features to images and back until equations hold.

        `None` where time is over before there are any. Where there is noise equations never hold,
        and one pass is enough.
        """
        run, best, latest = search.run, None, None
        count = 1 if search.local.head.noise > 0 else max(1, min(6, self.steps // 25))
        try:
            for number in range(count):
                guess = self._pass(search, latest)
                if guess is None:
                    return best and replace(best, status=TIME_BUDGET)
                if run.progress is not None:
                    run.progress(number + 1, count, guess.loss)
                if guess.is_certain:
                    return guess
                latest = guess.inputs
                best = guess if best is None or guess.loss < best.loss else best
                best = replace(best, status=guess.status)
                if guess.status != FINISHED or (number >= 2 and best.loss > 0.5):
                    break  # no more passes help
        except KeyboardInterrupt:
            return replace(best or run.blank(INTERRUPTED), status=INTERRUPTED)
        return best

    def _pass(self, search: LocalSearch, latest: Tensor | None) -> Reconstruction | None:
        """One of them; `None` where time is over before there are images.

        An example of which a trained model is sure hardly shows in the message: for certainty each
        image must have its features, and the misfit be small by itself, too, not only beside that
        of random images.
        """
        run, peel = search.run, self
        places, cost = search.solve(latest)
        if run.watch.is_over():
            return None
        if search.local.head.noise > 0:
            peel = replace(peel, rounds=min(2, peel.rounds))
        elif cost >= SOLVED:
            peel = replace(peel, rounds=2, image_steps=150, total_variation=1e-3)
        inputs, misfits, status = peel._images(search, places)
        guess = Reconstruction(inputs, run.labels, run.misfit(inputs), status=status)
        if cost >= SOLVED:
            return guess
        limit = min(1e-3, NEAR * run.random_misfit())
        found = status == FINISHED and bool((misfits < CLOSE).all())
        return replace(guess, is_certain=found and guess.loss < limit)

    def _images(self, search: LocalSearch, places: Tensor) -> tuple[Tensor, Tensor, str]:
        """Inputs with the features of their first visits, those of earlier steps first."""
        run, local = search.run, search.local
        features, errors = places @ local.basis, places.new_zeros(len(places))
        if local.head.noise > 0:
            features, errors = local.head.features(local.outputs(places), run.labels)
        inputs = run.noise(1)[0]
        misfits, status = inputs.new_full((len(inputs),), torch.inf), FINISHED
        steps = zip(search.walk(inputs), local.visits.rows, strict=True)
        for (examples, parameters), own in steps:
            if status != FINISHED or bool(misfits[examples].isfinite().all()):
                break
            target, noise = features[own].to(inputs), errors[own].to(inputs)
            inputs[examples], misfits[examples], status = self.invert(
                local.head.call.name, run, parameters, target, noise
            )
        return run.clamp(inputs), misfits, status

    def invert(
        self, name: str, run: Run, parameters: Tensors, features: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, str]:
        """Inputs with these features and their misfits; new starts for images not yet found.

        `name` is the layer that reads the features, `parameters` are the model's, and `noise` is
        the squared error that each image's features have.
        """
        seen = run.observation
        own = features_of(name, seen, parameters)
        blank = features.new_empty(1, len(features), *seen.input_shape)
        best = normal_like(blank, run.generator)[0]
        with torch.no_grad():
            others = own(random_inputs(seen, 8, run.generator))
            spread = (others[:, None] - features).square().sum(2).mean(0)
            unit = (own(best) - features).square().sum(1).mean()
        misfits, status = torch.full_like(spread, torch.inf), FINISHED
        each = float(noise.mean() / unit) * best[0].numel() / features.shape[1]
        smooth = max(self.total_variation, min(2 * each, 1e-2))  # as for differences of 1
        twin, known = SmoothTwin(seen, 1.0), seen.low is not None and seen.high is not None
        twins = features_of(name, twin.observation, parameters)
        rate = float((seen.high - seen.low).mean()) / 3 if known else 1.0  # type: ignore[operator]
        for _ in range(self.rounds):
            open_ = misfits > FOUND + noise / spread
            if status != FINISHED or not bool(open_.any()):
                break
            wanted = features[open_]

            def cost(inputs: Tensor, progress: float, wanted: Tensor = wanted) -> Tensor:
                twin.set_width(0.1 * 0.01**progress)
                misfit = (twins(inputs) - wanted).square().sum() / unit
                weight: float = 1e-2 * (smooth / 1e-2) ** progress
                return misfit + weight * len(inputs) * total_variation(inputs)

            left = run.watch.left()
            descent = Descent(self.image_steps, rate, "adam", "cosine", left, settled=1.0)
            start = normal_like(blank, run.generator)[:, open_]
            minimum = replace(run, progress=None).minimise(cost, start, descent)
            status = minimum.status
            with torch.no_grad():
                errors = (own(minimum.inputs[0]) - wanted).square().sum(1) / spread[open_]
            better = errors < misfits[open_]
            places = open_.nonzero().flatten()[better]
            best[places], misfits[places] = minimum.inputs[0][better], errors[better]
        return best, misfits, status

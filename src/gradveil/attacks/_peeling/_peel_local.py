"""Peeling of FedAvg's weight changes: the head along all steps first, then the inputs."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._attack import Progress
from .._evidence import random_inputs
from .._observation import Observation
from .._reconstruction import FINISHED, INTERRUPTED, TIME_BUDGET, Reconstruction
from .._search import Watch, clamp, determined_share, features_of, head_of_update, noise_start
from ._local_head import LocalHead
from ._local_search import SOLVED, LocalSearch
from ._peel import (
    CLOSE,
    DETERMINED,
    NEAR,
    ROUGH_SHARE,
    WORTH,
    Peel,
    Peeled,
    message_misfit,
    random_misfit,
)
from ._trajectories import Training
from ._visits import Visits

PASSES, EACH = 6, 25
"""At most so often images are made of features and features of images; one for each so many steps
of the attack."""
HOPELESS = 0.5
"""The misfit of the message above which no further passes follow the first three."""
MANY = 3000
"""Unknowns from which on whole Jacobians take too much time and memory."""
EXPLAINED = 1e-3
"""The misfit of the message up to which a guess can be sure."""


def peel_local(
    peel: Peel,
    observation: Observation,
    labels: Tensor,
    generator: torch.Generator,
    watch: Watch,
    progress: Progress | None = None,
) -> Peeled | None:
    """The batch behind FedAvg's weight change; `None` where its head is not determined.

    1. Random batches are trained, to see how features move (`Expected`).
    2. The head's equations (`LocalHead`) are solved for the features of all visits, with less and
       less weight on what is expected, from smooth activations to the model's own.
    3. Images from their features, step by step. Trained again, they tell better what to expect and
       where to start, until the equations have no residual left.
    """
    local = observation.local
    visits = None if local is None else Visits.of(local, observation.batch_size)
    if visits is None or not visits.cover(observation.batch_size):
        return None
    head = head_of_update(observation, generator, len(visits))
    if head is None or not head.is_all:
        return None
    own = features_of(head.name, observation)
    share = determined_share(own, random_inputs(observation, 2, generator), generator)
    if share < WORTH:
        return None
    equations = LocalHead(head, labels, visits)
    if equations.unknowns > MANY:
        return None
    training = Training(observation, labels, visits, head.name)
    search = LocalSearch(training, equations, generator, watch.part(ROUGH_SHARE))
    found = _Passes(peel, search, progress).run()
    return found and replace(found, sure=found.sure and share >= DETERMINED)


@dataclass(frozen=True)
class _Passes:
    """From features to images and back, until the equations hold."""

    peel: Peel
    search: LocalSearch
    progress: Progress | None

    def run(self) -> Peeled | None:
        """The best images by their message; `None` where time is over before there are any."""
        best: Reconstruction | None = None
        latest: Tensor | None = None
        try:
            for number in range(self._count):
                found = self._pass(latest, number)
                if found is None or found.sure:
                    return self._late(best) if found is None else found
                latest, guess = found.guess.inputs, found.guess
                best = guess if best is None or guess.loss < best.loss else best
                if guess.status != FINISHED:
                    best = replace(best, status=guess.status)
                    break
                if number >= 2 and best.loss > HOPELESS:
                    break
        except KeyboardInterrupt:
            seen = self.search.training.observation
            best = best or self._guess(noise_start(seen, 1, self.search.generator)[0], 0, FINISHED)
            return Peeled(replace(best, status=INTERRUPTED), solved=False, sure=False)
        return None if best is None else Peeled(best, solved=True, sure=False)

    @property
    def _count(self) -> int:
        return max(1, min(PASSES, self.peel.steps // EACH))

    def _late(self, best: Reconstruction | None) -> Peeled | None:
        """What there is when the time is over."""
        late = best and replace(best, status=TIME_BUDGET)
        return None if late is None else Peeled(late, solved=True, sure=False)

    def _pass(self, latest: Tensor | None, number: int) -> Peeled | None:
        """One of them; `None` where time is over before there are images."""
        search = self.search
        places, cost = search.from_nothing() if latest is None else search.from_inputs(latest)
        if search.watch.is_over():
            return None
        rough = replace(self.peel, rounds=2, image_steps=150, total_variation=1e-3)
        inputs, misfits, status = self._images(self.peel if cost < SOLVED else rough, places)
        guess = self._guess(inputs, number, status)
        if self.progress is not None:
            self.progress(number + 1, self._count, guess.loss)
        sure = cost < SOLVED and self._is_sure(guess, misfits)
        return Peeled(guess, solved=True, sure=sure)

    def _images(self, peel: Peel, places: Tensor) -> tuple[Tensor, Tensor, str]:
        """Inputs with the features of their first visits, those of earlier steps first."""
        search, training = self.search, self.search.training
        features, seen = places @ search.local.basis, training.observation
        inputs = noise_start(seen, 1, search.generator)[0]
        misfits, status = inputs.new_full((len(inputs),), torch.inf), FINISHED
        rows = training.visits.rows()
        for (examples, parameters), own in zip(training.walk(inputs), rows, strict=True):
            if status != FINISHED or bool(misfits[examples].isfinite().all()):
                break
            target = features[own].to(inputs)
            inputs[examples], misfits[examples], status = peel.invert(
                training.layer,
                training.at(parameters, len(own)),
                target,
                target.new_zeros(len(own)),
                search.generator,
                search.watch,
            )
        return clamp(inputs, seen.low, seen.high), misfits, status

    def _guess(self, inputs: Tensor, number: int, status: str) -> Reconstruction:
        training = self.search.training
        misfit = message_misfit(training.observation, inputs, training.labels)
        return Reconstruction(inputs, training.labels, misfit, [(number, misfit)], status)

    def _is_sure(self, guess: Reconstruction, misfits: Tensor) -> bool:
        """Whether all images have their features, and together they explain the message.

        An example of which a trained model is sure hardly shows in it: the misfit must be small by
        itself, too, not only beside that of random images.
        """
        training, search = self.search.training, self.search
        found = guess.status == FINISHED and bool((misfits < CLOSE).all())
        other = random_misfit(training.observation, training.labels, search.generator)
        return found and guess.loss < min(EXPLAINED, NEAR * other)

"""Peeling of FedAvg's weight changes: the head along all steps first, then the inputs."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .._attack import Progress
from .._evidence import random_inputs
from .._observation import Observation
from .._reconstruction import FINISHED, INTERRUPTED, TIME_BUDGET, Reconstruction
from .._search import Watch, clamp, determined_share, features_of, head_of_update, noise_start
from ._least_squares import least_squares
from ._local_head import LocalHead
from ._peel import CLOSE, DETERMINED, NEAR, WORTH, Peel, Peeled, message_misfit, random_misfit
from ._trajectories import Expected, Training, simulate
from ._visits import Visits

SOLVED = 1e-9
"""The squared residual of the head's equations that counts as 0."""
ALMOST = 1e-2
"""That of inputs whose own training is a start for the model's own equations."""
PASSES = 6
"""At most so often images are made of features and features of images."""
BATCHES = 48
"""Random batches whose training is simulated for a pass."""
WIDTHS = 12
"""Of the smooth twin's activations in the first pass, each 0.7 times the one before ..."""
LATER_WIDTHS = 5
"""... and later, each half of the one before."""


class _Stage(NamedTuple):
    """A pass over the widths."""

    width: float
    """The first, over the size of the head's outputs."""
    fall: float
    widths: int
    weight: float
    """Of what is expected, at the first width."""
    ridge: float
    around: float = 0.0


_FIRST = _Stage(2.0, 0.7, WIDTHS, 0.1, 0.1)
_LATER = _Stage(0.13, 0.5, LATER_WIDTHS, 0.01, 0.02, 0.3)


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
    if local is None:
        return None
    visits = Visits.of(local, observation.batch_size)
    if not visits.cover(observation.batch_size):
        return None
    head = head_of_update(observation, generator, len(visits))
    if head is None or not head.is_all:
        return None
    share = determined_share(
        features_of(head.name, observation), random_inputs(observation, 2, generator), generator
    )
    if share < WORTH:
        return None
    training = Training(observation, labels, visits, head.name)
    search = _Search(peel, training, LocalHead(head, labels, visits), generator, watch, progress)
    found = search.run()
    return found and replace(found, sure=found.sure and share >= DETERMINED)


@dataclass(frozen=True)
class _Search:
    peel: Peel
    training: Training
    local: LocalHead
    generator: torch.Generator
    watch: Watch
    progress: Progress | None

    def run(self) -> Peeled | None:
        """Passes until the equations hold; the best images by their message."""
        best: Reconstruction | None = None
        try:
            inputs: Tensor | None = None
            for number in range(PASSES):
                row, cost = self._solve(inputs)
                if self.watch.is_over():
                    break
                rough = replace(self.peel, rounds=2, image_steps=150, total_variation=1e-3)
                peel = self.peel if cost < SOLVED else rough
                inputs, misfits, status = self._images(peel, self.local.places(row))
                guess = self._guess(inputs, number, status)
                if best is None or guess.loss < best.loss:
                    best = guess
                if self.progress is not None:
                    self.progress(number + 1, PASSES, best.loss)
                if cost < SOLVED or status != FINISHED:
                    return Peeled(best, True, cost < SOLVED and self._is_sure(best, misfits))
        except KeyboardInterrupt:
            best = best or self._guess(
                noise_start(self.training.observation, 1, self.generator)[0], 0, INTERRUPTED
            )
            return Peeled(replace(best, status=INTERRUPTED), False, False)
        if best is not None and self.watch.is_over():
            best = replace(best, status=TIME_BUDGET)
        return None if best is None else Peeled(best, True, False)

    def _solve(self, inputs: Tensor | None) -> tuple[Tensor, float]:
        """The head's unknowns, from nothing or from inputs, and what is left of its equations."""
        stage = _FIRST if inputs is None else _LATER
        around = None if inputs is None else (inputs, stage.around)
        local, head = self.local, self.local.head
        drawn = simulate(self.training, local.basis, around, BATCHES, self.generator, self.watch)
        expected = Expected(drawn, local.visits, stage.ridge)
        scale = float(head.outputs.square().mean().sqrt())
        head.twin.set_width(stage.width * scale if inputs is None else 1e-9)
        if inputs is None:
            local.measure(expected.mean)
            row = local.start(expected.draw(0.3, self.generator))
        else:
            row = local.start(self.training.features(inputs) @ local.basis.T)
            head.sharpen()
            if float(local.residuals(row).square().sum()) < ALMOST:
                found = self._end(row)
                if found[1] < SOLVED:
                    return found
        for number in range(stage.widths):
            head.twin.set_width(stage.width * scale * stage.fall**number)
            weight = (stage.weight * stage.fall ** (1.5 * number)) ** 0.5

            def residuals(row: Tensor, weight: float = weight) -> Tensor:
                beside = weight * expected.residuals(local.places(row))
                return torch.cat([local.residuals(row), beside])

            row = least_squares(residuals, row, steps=4, watch=self.watch)[0]
        return self._end(row)

    def _end(self, row: Tensor) -> tuple[Tensor, float]:
        """The model's own equations, with nothing beside them; longer where they nearly hold."""
        self.local.head.sharpen()
        cost = float("inf")
        for _ in range(3):
            row, cost = least_squares(
                self.local.residuals, row, steps=20, watch=self.watch, good=1e-3 * SOLVED
            )
            if not SOLVED < cost < ALMOST / 10:
                break
        return row, cost

    def _images(self, peel: Peel, places: Tensor) -> tuple[Tensor, Tensor, str]:
        """Inputs with the features of their first visits, those of earlier steps first."""
        features = places @ self.local.basis
        seen = self.training.observation
        inputs = noise_start(seen, 1, self.generator)[0]
        misfits, status = inputs.new_full((len(inputs),), torch.inf), FINISHED
        rows = self.local.visits.rows()
        for (examples, parameters), own in zip(self.training.walk(inputs), rows, strict=True):
            if bool(misfits[examples].isfinite().all()):
                break
            target = features[own].to(inputs)
            inputs[examples], misfits[examples], status = peel.invert(
                self.training.layer, self.training.at(parameters, len(own)), target,
                target.new_zeros(len(own)), self.generator, self.watch,
            )  # fmt: skip
            if status != FINISHED:
                break
        return clamp(inputs, seen.low, seen.high), misfits, status

    def _guess(self, inputs: Tensor, number: int, status: str) -> Reconstruction:
        labels = self.training.labels
        misfit = message_misfit(self.training.observation, inputs, labels)
        return Reconstruction(inputs, labels, misfit, [(number, misfit)], status)

    def _is_sure(self, guess: Reconstruction, misfits: Tensor) -> bool:
        """Whether most images have their features, and all of them explain the message."""
        most = 2 * int((misfits < CLOSE).sum()) > len(misfits)
        other = random_misfit(self.training.observation, self.training.labels, self.generator)
        return guess.status == FINISHED and most and guess.loss < NEAR * other

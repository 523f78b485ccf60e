"""Inverting Gradients (Geiping et al., 2020): match the direction of the gradient."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_kind, check_not_negative
from gradveil._random import named_stream, seed_from

from ._attack import FINISHED, INTERRUPTED, Reconstruction
from ._descent import SETTLED, Cost, Descent, Minimum, Watch
from ._exact_inversion import ExactInversion
from ._matching import euclidean_evidence
from ._model_layers import random_examples
from ._peel import Peel
from ._priors import TotalVariation, total_variation
from ._refine import Finish, Stages, refine_in_stages
from ._regress import Regress
from ._targets import LabelledSearch, Run
from ._unpool import Unpool


@dataclass(frozen=True)
class InvertingGradients(LabelledSearch):
    """Minimises D(g(x), y) + total_variation · TV(x) over inputs x in their range.

    D is the cosine distance 1 - ⟨g, y⟩/(‖g‖‖y‖). The attack does as if there were no defense.
    Labels that the threat model does not grant are read off the message (`recover_labels`).
    `InvertingGradients.paper()` has the paper's settings, `InvertingGradients.strong()` tuned ones.
    It works for FedAvg's updates, too.

    Args:
        lr: The first step's size (signed Adam); × 0.1 after 3/8, 5/8 and 7/8 of the steps.
        total_variation: Its weight at the start ...
        total_variation_end: ... and, falling geometrically, after 7/8 of the steps, both in units
            of the root of the distance that random inputs have; `None`: as at the start.
        restarts: How many starts from N(0, I) run beside each other; the least cost wins.
        finish: Second-order steps at the end, where the message is nearly explained.
        peel: Inverts a fully connected ReLU layer at the model's start (`ExactInversion`), or else
            solves the last layers first, in at most as many steps. Where that is known to be right,
            nothing else is done; else what fits better, that or the descent, is kept.
        unpool: Solves the stages of a convolutional model one after the other from its end, where
            the last layers alone do not show the inputs; where that works, nothing else is done.
        regress: Makes the first start (`Regress`), with at most as many samples as steps, which
            goes on with a quarter of the rate. An attack with one start tries both for a fifth of
            the steps, and takes the one with the less cost.
    """

    steps: int = 1000
    lr: float = 0.2
    total_variation: float = 1e-6
    _: KW_ONLY
    total_variation_end: float | None = None
    restarts: int = 1
    finish: Finish | None = None
    peel: Peel | None = None
    unpool: Unpool | None = None
    regress: Regress | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self._end, "total_variation_end")
        for kind in (Finish, Peel, Unpool, Regress):
            part = getattr(self, name := kind.__name__.lower())
            if part is not None:
                check_kind(part, name, kind, f"Use for example `{kind.__name__}()`.")

    @classmethod
    def paper(cls, **changes: Any) -> "InvertingGradients":
        """Cosine, signed Adam with lr 0.2, total variation 1e-6, one start, 2,000 steps."""
        return cls(**{"steps": 2000, **changes})

    @classmethod
    def strong(cls, **changes: Any) -> "InvertingGradients":
        """Unpooling, peeling; a regression, annealed total variation, restarts and a finish."""
        parts = {"finish": Finish(), "peel": Peel(), "unpool": Unpool(), "regress": Regress()}
        tuned = {"total_variation": 3e-2, "total_variation_end": 3e-3, "restarts": 2, **parts}
        return cls(**{**tuned, **changes})

    def search(self, run: Run) -> Reconstruction:
        """What is certain by itself, or the better one of that and of the descent."""
        seed = seed_from(run.generator)  # of what is drawn beside the starts: these stay the same
        early = run.watch.part(0.5)  # of a time budget, for what is tried before the descent
        aside = torch.Generator().manual_seed(seed)
        found = self._closed_form(replace(run, generator=aside, watch=early))
        if found is not None and (found.is_certain or found.status == INTERRUPTED):
            return found
        result = self._descend(run, torch.Generator().manual_seed(seed))
        return result if found is None else self._better(run, result, found)

    def _closed_form(self, run: Run) -> Reconstruction | None:
        """The batch by unpooling, by exact inversion or by peeling, in this order.

        Exact inversion returns what it can confirm, or nothing; the others may be uncertain.
        """
        found, peel, unpool = None, self.peel, self.unpool
        if unpool is not None and not run.watch.is_over():
            aside = replace(run, generator=run.generator.clone_state())  # peeling stays the same
            found = replace(unpool, steps=min(unpool.steps, self.steps)).solve(aside)
        if found is None and peel is not None and not run.watch.is_over():
            found = ExactInversion().solve(run)
            if found is None and not run.watch.is_over():
                found = replace(peel, steps=min(peel.steps, self.steps)).solve(run)
        return found

    def _better(self, run: Run, result: Reconstruction, guess: Reconstruction) -> Reconstruction:
        """The descent's result or a closed form's guess: what fits better, else the less cost."""
        if result.status == INTERRUPTED:
            return result
        unit = self._unit(run, named_stream("unit"))
        if guess.status == FINISHED == result.status:
            guess = self._refined(run, guess, guess.inputs[None], unit)
        cost, both = self._cost(run, unit), (guess.inputs, result.inputs)
        fits = [run.misfit(inputs) for inputs in both]
        with torch.no_grad():
            costs = [float(cost(inputs, 1.0)) for inputs in both]
        # a cost with total variation does not tell where one explains much more: on a deep model
        # random images explain all but 1 % of a message, and the smoothest one has the least cost
        judged = fits if min(fits) < 0.5 * max(fits) else costs
        better = judged[0] < judged[1]
        return replace(result, inputs=guess.inputs, loss=costs[0]) if better else result

    def _descend(self, run: Run, aside: torch.Generator) -> Reconstruction:
        unit = self._unit(run, aside)
        found = self._search(run, self._cost(run, unit), aside)
        best = found.best
        result = Reconstruction(best.inputs, run.labels, best.cost, best.status)
        if best.status != FINISHED:
            return result
        return self._refined(run, result, found.inputs[found.costs.argsort()], unit)

    def _search(self, run: Run, cost: Cost, aside: torch.Generator) -> Minimum:
        """From the regression's estimate first, if there is one; the other starts are noise."""
        noise, watch = run.noise(self.restarts), run.watch
        if self.regress is None:
            return self._minimise(run, cost, noise, watch)
        samples = min(self.regress.samples, self.steps)
        regress, part = replace(self.regress, samples=samples, progress=None), 1 / self.restarts
        estimate = regress.estimate(run, aside, watch.part(part / 4))[0][None]
        gentle = replace(self, lr=self.lr / 4)
        if self.restarts > 1:  # each start has its own part of a time budget
            first = gentle._minimise(run, cost, estimate, watch.part(part))
            if first.status == INTERRUPTED:
                return first
            return first.beside(self._minimise(run, cost, noise[1:], watch))
        silent, steps = replace(run, progress=None), max(1, round(0.2 * self.steps))
        sides = ((gentle, estimate), (self, noise))
        one, other = (
            replace(side, steps=steps)._minimise(silent, cost, start, watch.part(0.2))
            for side, start in sides
        )
        if INTERRUPTED in (one.status, other.status):
            return one.beside(other)
        chosen, start = sides[0 if bool(one.costs < other.costs) else 1]
        return chosen._minimise(run, cost, start, watch)

    def _minimise(self, run: Run, cost: Cost, start: Tensor, watch: Watch) -> Minimum:
        settled = 0.0 if self.total_variation_end is None else SETTLED
        descent = Descent(self.steps, self.lr, time_budget=watch.left(), settled=settled)
        return run.minimise(cost, start, descent)

    def _unit(self, run: Run, generator: torch.Generator) -> Tensor:
        """Of total variation's weight: 1, or the root of the median distance of random inputs.

        A model whose message is nearly the same for all inputs has small distances everywhere;
        total variation weighs less there. It does not weigh as much less as the distance is
        smaller: such a distance has little slope, too, and the images need a prior the more.
        """
        count, distance = len(run.labels), run.distance
        if self.total_variation_end is None:
            return run.sent.new_ones(())
        drawn = random_examples(run.observation, 8 * count, generator).split(count)
        with torch.no_grad():
            found = [distance(inputs) for inputs in drawn]
        return torch.stack(found).median().clamp(0.0, 1.0).sqrt()

    def _cost(self, run: Run, unit: Tensor) -> Cost:
        """D(g(x), y) + unit · weight · TV(x) at this stage of the annealing."""
        distance, start, end = run.distance, self.total_variation, self._end

        def cost(inputs: Tensor, progress: float) -> Tensor:
            weight = between(start, end, min(1.0, progress / SETTLED))
            return distance(inputs) + unit * weight * total_variation(inputs)

        return cost

    @property
    def _end(self) -> float:
        end = self.total_variation_end
        return self.total_variation if end is None else end

    def _refined(
        self, run: Run, result: Reconstruction, starts: Tensor, unit: Tensor
    ) -> Reconstruction:
        """Second-order steps on ‖g - y‖²/‖y‖² + total variation, from the best starts first."""
        if self.finish is None:
            return result
        energy = TotalVariation(float(unit) * self._end / starts[0].numel())
        evidence = euclidean_evidence(run.sent)
        stages = Stages(run.observation, run.labels, evidence, energy, self.finish)
        # second-order steps need a start near the minimum; a misfit below 0.001 is the truth's
        near = [start for start in starts if not stages.misfit(start) > 0.5]
        refined = refine_in_stages(stages, near, run.watch, lambda x: stages.misfit(x) < 1e-3)
        if refined is None:
            return result
        return replace(result, inputs=refined.inputs, loss=refined.cost, status=refined.status)


def between(start: float, end: float, share: float) -> float:
    """From start to end, geometrically where both are above 0."""
    if start > 0 and end > 0:
        return start * math.exp(share * math.log(end / start))
    return start + share * (end - start)

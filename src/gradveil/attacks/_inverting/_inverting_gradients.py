"""Inverting Gradients (Geiping et al., 2020): match the direction of the gradient."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import (
    check_choice,
    check_count,
    check_kind,
    check_not_negative,
    check_optional_callable,
)
from gradveil._random import generator_or_fresh, named_stream, seed_from

from .._attack import Attack, Progress
from .._evidence import DISTANCES, TotalVariation, euclidean_evidence
from .._observation import Observation
from .._peeling import Peel, Peeled
from .._reconstruction import FINISHED, INTERRUPTED, Reconstruction
from .._regression import Regress
from .._search import (
    SETTLED,
    Cost,
    Descent,
    Finish,
    Stages,
    Watch,
    check_alike,
    labels_of,
    refine_in_stages,
    sent_row,
)
from .._unpooling import Unpool
from ._closed_forms import closed_form, fits_better, interrupted
from ._matching import matching_cost, misfit_unit
from ._starts import Starts

CLOSED_FORMS = 0.5
"""The share of a time budget for what is tried before the descent."""


@dataclass(frozen=True)
class InvertingGradients(Attack):
    """Minimises D(g(x), y) + total_variation · TV(x) over inputs x in their range.

    D is the cosine distance 1 - ⟨g, y⟩/(‖g‖‖y‖) or the relative squared distance. The attack does
    as if there were no defense. Labels that the threat model does not grant are taken from the
    message first (`recover_labels`). `InvertingGradients.paper()` has the paper's settings,
    `InvertingGradients.strong()` tuned ones. It works for FedAvg's updates, too.

    Args:
        steps: First-order steps.
        lr: The first step's size; × 0.1 after 3/8, 5/8 and 7/8 of the steps.
        total_variation: The weight of the total variation at the start ...
        total_variation_end: ... and, falling geometrically, after 7/8 of the steps; `None`: as at
            the start.
        restarts: How many starts from N(0, I) run beside each other; the best by its own cost wins.
        distance: "cosine" or "euclidean".
        method: "signed-adam", "adam" or "sgd".
        decay: "steps", "cosine" or "none".
        smoothing: The width of the smooth twin's activations at the start, falling geometrically to
            1 % of it (`SmoothTwin`); 0: the model itself all along.
        finish: Second-order steps at the end, where the message is nearly explained.
        peel: Inverts a fully connected ReLU layer at the model's start (`ExactInversion`), or else
            solves the last layers first, with no more steps for them than the attack itself has
            (of FedAvg's updates along all local steps, in one pass for each 25 steps, at most six).
            Where that is known to be right, nothing else is done; elsewhere the descent runs as
            without it, and of the two the one with the less cost is kept.
        unpool: Solves the stages of a convolutional model one after the other from its end, where
            the last layers alone do not show the inputs; where that works, nothing else is done.
        regress: Makes the first start by regression on simulated messages (`Regress`), with no more
            samples than the attack has steps, and goes on from it with a quarter of the rate and
            without smoothing. An attack with one start tries both for a fifth of the steps, and
            takes the one with the less cost.
        relative: Whether total variation is weighed in units of the root of the distance that
            random inputs have, where that is below 1.
        history_every: Every how many steps the cost is recorded.
        time_budget: Seconds after which the best so far is returned.
        progress: Called with (step, steps, cost).
    """

    runs_together = True

    steps: int = 1000
    lr: float = 0.2
    total_variation: float = 1e-6
    _: KW_ONLY
    total_variation_end: float | None = None
    restarts: int = 1
    distance: str = "cosine"
    method: str = "signed-adam"
    decay: str = "steps"
    smoothing: float = 0.0
    finish: Finish | None = None
    history_every: int = 50
    time_budget: float | None = None
    chunk: int | None = None
    progress: Progress | None = None
    peel: Peel | None = None
    unpool: Unpool | None = None
    regress: Regress | None = None
    relative: bool = False

    def __post_init__(self) -> None:
        check_not_negative(self.total_variation, "total_variation")
        check_not_negative(self.smoothing, "smoothing")
        self.descent()
        check_optional_callable(self.progress, "progress", "Give a function, or None.")
        check_count(self.restarts, "restarts")
        check_choice(self.distance, "distance", tuple(DISTANCES))
        if self.total_variation_end is not None:
            check_not_negative(self.total_variation_end, "total_variation_end")
        for name, kind in _PARTS.items():
            if getattr(self, name) is not None:
                check_kind(getattr(self, name), name, kind, f"Use for example `{kind.__name__}()`.")

    @classmethod
    def paper(cls, **changes: Any) -> "InvertingGradients":
        """Cosine, signed Adam with lr 0.2, total variation 1e-6, one start, 2,000 steps."""
        return cls(**{"steps": 2000, **changes})

    @classmethod
    def strong(cls, **changes: Any) -> "InvertingGradients":
        """Unpooling, peeling; a regression, annealed total variation, restarts and a finish."""
        tuned: dict[str, Any] = {
            "total_variation": 3e-2,
            "total_variation_end": 3e-3,
            "restarts": 2,
            "finish": Finish(),
            "peel": Peel(),
            "unpool": Unpool(),
            "regress": Regress(),
            "relative": True,
        }
        return cls(**{**tuned, **changes})

    def descent(self) -> Descent:
        """The first-order part."""
        return Descent(
            self.steps,
            self.lr,
            self.method,
            self.decay,
            self.history_every,
            self.time_budget,
            self.chunk,
            SETTLED if self.anneals else 0.0,
        )

    @property
    def work(self) -> float:
        """The steps of all starts, and the regression's samples."""
        samples = 0.0 if self.regress is None else min(self.regress.samples, self.steps) / 3
        return float(self.steps * self.restarts) + samples

    @property
    def reports(self) -> float:
        """The steps; starts from noise run beside each other."""
        return float(self.steps * (1 if self.regress is None or self.restarts == 1 else 2))

    @property
    def anneals(self) -> bool:
        """Whether the cost changes on the way."""
        return self.smoothing > 0 or self.total_variation_end is not None

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack one observation."""
        return self.many([observation], generator)[0]

    def many(
        self, observations: Sequence[Observation], generator: torch.Generator | None = None
    ) -> list[Reconstruction]:
        """Attack several observations of one model in one batched run."""
        check_alike(observations)
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        labels = [labels_of(o, generator) for o in observations]
        aside = torch.Generator().manual_seed(seed_from(generator))  # the starts stay the same
        early = watch.part(CLOSED_FORMS)
        peeled: list[Peeled | None] = []
        for observation, own in zip(observations, labels, strict=True):
            peeled.append(self._peeled(observation, own, aside, early))
            if peeled[-1] is not None and peeled[-1].guess.status == INTERRUPTED:
                return interrupted(observations, labels, peeled, aside)
        rest = [n for n, found in enumerate(peeled) if found is None or not found.sure]
        if not rest:
            return [found.guess for found in peeled if found is not None]
        left, own_labels = [observations[n] for n in rest], [labels[n] for n in rest]
        others = iter(self._descend(left, own_labels, generator, watch))
        return [
            found.guess if found and found.sure else self._better(o, next(others), found, watch)
            for o, found in zip(observations, peeled, strict=True)
        ]

    def _peeled(
        self, observation: Observation, labels: Tensor, generator: torch.Generator, watch: Watch
    ) -> Peeled | None:
        peel, unpool = self.peel, self.unpool
        return closed_form(
            observation,
            labels,
            generator,
            watch,
            unpool=unpool and unpool.configured(steps=min(unpool.images.steps, self.steps)),
            peel=peel and replace(peel, steps=min(peel.steps, self.steps)),
            progress=self.progress,
        )

    def _better(
        self, observation: Observation, result: Reconstruction, found: Peeled | None, watch: Watch
    ) -> Reconstruction:
        """The descent's result or a closed form's guess: what fits better, else the less cost."""
        if found is None or result.status == INTERRUPTED:
            return result
        guess, sent, cost = found.guess, sent_row(observation), self.cost(observation)
        unit = float(self._unit(observation, guess.targets, named_stream("unit")))
        if self.finish is not None and guess.status == FINISHED == result.status:
            guess = self._refined(observation, guess, guess.inputs[None], unit, watch)
        with torch.no_grad():
            ours, its = (float(cost(r.inputs, 1.0, r.targets, sent, unit)) for r in (result, guess))
        better = fits_better(observation, guess, result)
        better = its < ours if better is None else better
        return replace(result, inputs=guess.inputs, loss=its) if better else result

    def _descend(
        self,
        observations: Sequence[Observation],
        labels: list[Tensor],
        generator: torch.Generator,
        watch: Watch,
    ) -> list[Reconstruction]:
        """First-order steps for all at once, then the finish of each."""
        aside = torch.Generator().manual_seed(seed_from(generator))  # the starts stay the same
        units = [self._unit(o, own, aside) for o, own in zip(observations, labels, strict=True)]
        starts = Starts(
            observations,
            labels,
            torch.stack(units),
            self.cost(observations[0]),
            replace(self, smoothing=0.0).cost(observations[0]),
            self.descent(),
            self.progress,
        )
        regress = self.regress
        regress = regress and replace(regress, samples=min(regress.samples, self.steps))
        found = starts.search(self.restarts, regress, (generator, aside), watch)
        results: list[Reconstruction] = []
        for row, observation in enumerate(observations):
            result = found[row].best(labels[row])
            if self.finish is not None and all(r.status == FINISHED for r in (result, *results)):
                unit = float(units[row])
                result = self._refined(observation, result, found[row].inputs, unit, watch)
            results.append(result)
        return results

    def _unit(self, observation: Observation, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Of total variation's weight."""
        if not self.relative:
            return sent_row(observation).new_ones(())
        return misfit_unit(observation, labels, self.distance, generator)

    def cost(self, observation: Observation) -> Cost:
        """(inputs, progress, labels, sent) to the cost at this stage of the annealing."""
        end = self.total_variation if self.total_variation_end is None else self.total_variation_end
        weights = (self.total_variation, end)
        return matching_cost(observation, self.distance, weights, self.smoothing)

    def _refined(
        self,
        observation: Observation,
        result: Reconstruction,
        starts: Tensor,
        unit: float,
        watch: Watch,
    ) -> Reconstruction:
        """Second-order steps on ‖g - y‖²/‖y‖² + total variation, from the best starts first."""
        assert self.finish is not None
        end = self.total_variation if self.total_variation_end is None else self.total_variation_end
        stages = Stages(
            observation,
            result.targets,
            euclidean_evidence(sent_row(observation)),
            TotalVariation(unit * end / starts[0].numel()),
            self.finish,
        )
        refined = refine_in_stages(stages, starts, watch)
        if refined is None:
            return result
        return replace(result, inputs=refined.inputs, loss=refined.cost, status=refined.status)


_PARTS = {"finish": Finish, "peel": Peel, "unpool": Unpool, "regress": Regress}

"""Inverting Gradients (Geiping et al., 2020): match the direction of the gradient."""

import math
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
from gradveil._random import generator_or_fresh, seed_from

from ._attack import Attack, Progress
from ._closed_forms import closed_form
from ._evidence import DISTANCES, TotalVariation, euclidean_evidence, total_variation
from ._observation import Observation
from ._peeling import Peel, Peeled
from ._reconstruction import FINISHED, INTERRUPTED, Reconstruction
from ._search import (
    SETTLED,
    Cost,
    Descent,
    Finish,
    Minimum,
    SmoothTwin,
    Stages,
    Watch,
    check_alike,
    labels_of,
    minimise,
    noise_start,
    parts_of,
    refine_in_stages,
    sent_row,
)
from ._unpooling import Unpool


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
            solves the last layers first, with no more steps for them than the attack itself has.
            Where that is known to be right, nothing else is done; elsewhere the descent runs as
            without it, and of the two the one with the less cost is kept.
        unpool: Solves the stages of a convolutional model one after the other from its end, where
            the last layers alone do not show the inputs; where that works, nothing else is done.
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

    def __post_init__(self) -> None:
        check_not_negative(self.total_variation, "total_variation")
        check_not_negative(self.smoothing, "smoothing")
        self.descent()
        check_optional_callable(self.progress, "progress", "Give a function, or None.")
        check_count(self.restarts, "restarts")
        check_choice(self.distance, "distance", tuple(DISTANCES))
        if self.total_variation_end is not None:
            check_not_negative(self.total_variation_end, "total_variation_end")
        for name, kind in (("finish", Finish), ("peel", Peel), ("unpool", Unpool)):
            if getattr(self, name) is not None:
                check_kind(getattr(self, name), name, kind, f"Use for example `{kind.__name__}()`.")

    @classmethod
    def paper(cls, **changes: Any) -> "InvertingGradients":
        """Cosine, signed Adam with lr 0.2, total variation 1e-6, one start, 2,000 steps."""
        return cls(**{"steps": 2000, **changes})

    @classmethod
    def strong(cls, **changes: Any) -> "InvertingGradients":
        """Unpooling, peeling; annealed total variation and activations, restarts, a finish."""
        tuned: dict[str, Any] = {
            "total_variation": 3e-2,
            "total_variation_end": 3e-3,
            "restarts": 2,
            "distance": "euclidean",
            "smoothing": 0.3,
            "finish": Finish(),
            "peel": Peel(),
            "unpool": Unpool(),
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
        """The steps of all starts."""
        return float(self.steps * self.restarts)

    @property
    def reports(self) -> float:
        """The steps; the starts run beside each other."""
        return float(self.steps)

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
        peeled = [
            self._peeled(o, own, aside, watch) for o, own in zip(observations, labels, strict=True)
        ]
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
        """The descent's result, or the guess of peeling where that has the less cost."""
        if found is None or result.status == INTERRUPTED:
            return result
        guess, sent, cost = found.guess, sent_row(observation), self.cost(observation)
        if self.finish is not None and guess.status == FINISHED == result.status:
            guess = self._refined(observation, guess, guess.inputs[None], watch)
        with torch.no_grad():
            ours, its = (float(cost(r.inputs, 1.0, r.targets, sent)) for r in (result, guess))
        return replace(result, inputs=guess.inputs, loss=its) if its < ours else result

    def _descend(
        self,
        observations: Sequence[Observation],
        labels: list[Tensor],
        generator: torch.Generator,
        watch: Watch,
    ) -> list[Reconstruction]:
        """First-order steps for all at once, then the finish of each."""
        rows = torch.stack(labels)
        sent = torch.stack([sent_row(o) for o in observations])
        start = torch.cat([noise_start(o, self.restarts, generator) for o in observations])
        first = observations[0]
        minimum = minimise(
            self.cost(first),
            start,
            replace(self.descent(), time_budget=watch.left()),
            data=tuple(row.repeat_interleave(self.restarts, 0) for row in (rows, sent)),
            low=first.low,
            high=first.high,
            progress=self.progress,
        )
        results: list[Reconstruction] = []
        for row, observation in enumerate(observations):
            result = self._best(labels[row], minimum, row)
            if self.finish is not None and all(r.status == FINISHED for r in (result, *results)):
                result = self._refined(observation, result, self._ranked(minimum, row), watch)
            results.append(result)
        return results

    def cost(self, observation: Observation) -> Cost:
        """(inputs, progress, labels, sent) to the cost at this stage of the annealing."""
        distance = DISTANCES[self.distance]
        twin = SmoothTwin(observation, self.smoothing) if self.smoothing > 0 else None
        message = parts_of(twin.observation if twin else observation)

        def cost(inputs: Tensor, progress: float, labels: Tensor, sent: Tensor) -> Tensor:
            done = min(1.0, progress / SETTLED)
            if twin:
                twin.set_width(self.smoothing * 0.01**done)
            weight = _between(self.total_variation, self.total_variation_end, done)
            return distance(message(inputs, labels), sent) + weight * total_variation(inputs)

        return cost

    def _best(self, labels: Tensor, minimum: Minimum, row: int) -> Reconstruction:
        """The start with the least cost among those of one observation."""
        mine = slice(row * self.restarts, (row + 1) * self.restarts)
        history = [(step, float(past[mine].min())) for step, past in minimum.history]
        best = self._ranked(minimum, row)[0]
        return Reconstruction(
            best, labels, float(minimum.costs[mine].min()), history, minimum.status
        )

    def _ranked(self, minimum: Minimum, row: int) -> Tensor:
        """The candidates of one observation, the best first."""
        mine = slice(row * self.restarts, (row + 1) * self.restarts)
        return minimum.inputs[mine][minimum.costs[mine].argsort()]

    def _refined(
        self, observation: Observation, result: Reconstruction, starts: Tensor, watch: Watch
    ) -> Reconstruction:
        """Second-order steps on ‖g - y‖²/‖y‖² + total variation, from the best starts first."""
        assert self.finish is not None
        end = self.total_variation if self.total_variation_end is None else self.total_variation_end
        stages = Stages(
            observation,
            result.targets,
            euclidean_evidence(sent_row(observation)),
            TotalVariation(end / starts[0].numel()),
            self.finish,
        )
        refined = refine_in_stages(stages, starts, watch)
        if refined is None:
            return result
        return replace(result, inputs=refined.inputs, loss=refined.cost, status=refined.status)


def _between(start: float, end: float | None, share: float) -> float:
    """From start to end, geometrically where both are above 0."""
    if end is None:
        return start
    if start > 0 and end > 0:
        return start * math.exp(share * math.log(end / start))
    return start + share * (end - start)

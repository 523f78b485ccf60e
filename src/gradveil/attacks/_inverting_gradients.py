"""Inverting Gradients (Geiping et al., 2020): match the direction of the gradient."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradveil._checks import check_choice, check_kind, check_not_negative
from gradveil._random import generator_or_fresh, named_stream, seed_from

from ._attack import FINISHED, INTERRUPTED, Attack, Progress, Reconstruction, check_settings
from ._descent import (
    SETTLED,
    Cost,
    Descent,
    Minimum,
    Watch,
    check_alike,
    minimise,
    noise_start,
    parts_of,
    sent_row,
)
from ._exact_inversion import ExactInversion
from ._matching import DISTANCES, euclidean_evidence
from ._model_layers import SmoothTwin, random_examples
from ._observation import Observation
from ._peel import Peel, Peeled
from ._peel_local import peel_local
from ._priors import TotalVariation, total_variation
from ._refine import Finish, Stages, refine_in_stages
from ._regress import Regress
from ._targets import Run, labels_of, message_misfit
from ._unpool import Unpool

RANDOM = 8
"""How many batches of random inputs say what a misfit is worth."""


def matching_cost(
    observation: Observation, distance: str, weights: tuple[float, float], smoothing: float
) -> Cost:
    """(inputs, progress, labels, sent, unit) to D(g(x), y) + unit · weight · TV(x).

    Args:
        observation: One of those that are attacked beside each other.
        distance: D, "cosine" or "euclidean".
        weights: Of total variation at the start and at the end.
        smoothing: The width of the smooth twin's activations at the start; 0: no twin.
    """
    measure = DISTANCES[distance]
    twin = SmoothTwin(observation, smoothing) if smoothing > 0 else None
    message = parts_of(twin.observation if twin else observation)

    def cost(
        inputs: Tensor, progress: float, labels: Tensor, sent: Tensor, unit: Tensor | float = 1.0
    ) -> Tensor:
        done = min(1.0, progress / SETTLED)
        if twin:
            twin.set_width(smoothing * 0.01**done)
        roughness = unit * _between(*weights, done) * total_variation(inputs)
        return measure(message(inputs, labels), sent) + roughness

    return cost


def misfit_unit(
    observation: Observation, labels: Tensor, distance: str, generator: torch.Generator
) -> Tensor:
    """The root of the median distance of random inputs' messages from what was sent, at most 1.

    A model whose message is nearly the same for all inputs has small distances everywhere; total
    variation weighs less there. It does not weigh as much less as the distance is smaller: such a
    distance has little slope, too, and the images need a prior the more.
    """
    drawn = random_examples(observation, RANDOM * len(labels), generator).split(len(labels))
    message, sent = parts_of(observation), sent_row(observation)
    with torch.no_grad():
        found = [DISTANCES[distance](message(inputs, labels), sent) for inputs in drawn]
    return torch.stack(found).median().clamp(0.0, 1.0).sqrt()


def _between(start: float, end: float, share: float) -> float:
    """From start to end, geometrically where both are above 0."""
    if start > 0 and end > 0:
        return start * math.exp(share * math.log(end / start))
    return start + share * (end - start)


TRIAL = 0.2
"""The share of the steps after which a single start is chosen."""
GENTLE = 0.25
"""The rate from the regression's start, over that from noise."""


class Found(NamedTuple):
    """The candidates of one observation, the best first."""

    inputs: Tensor
    costs: Tensor
    history: list[tuple[int, float]]
    status: str

    def best(self, labels: Tensor) -> Reconstruction:
        """The first one."""
        return Reconstruction(
            self.inputs[0], labels, float(self.costs[0]), self.history, self.status
        )


class Starts(NamedTuple):
    """Observations of one model and what their descents share."""

    observations: Sequence[Observation]
    labels: Sequence[Tensor]
    units: Tensor
    """Of the distance, one for each observation."""
    cost: Cost
    """Of starts from noise, annealed."""
    plain_cost: Cost
    """Of starts from the estimates: the model itself, not its smooth twin."""
    descent: Descent
    progress: Progress | None

    def search(
        self,
        restarts: int,
        regress: Regress | None,
        draws: tuple[torch.Generator, torch.Generator],
        watch: Watch,
    ) -> list[Found]:
        """From the estimates first, if there are any; the other starts are noise."""
        noise = [noise_start(o, restarts, draws[0]) for o in self.observations]
        estimates = self._estimates(regress, draws[1], watch, restarts)
        if estimates is None:
            return self._found([self._run(noise, watch.left())])
        if restarts == 1:
            return self._single(estimates, noise, watch)
        left = watch.left()
        gentle = self._gentle()
        runs = [gentle._run(estimates, None if left is None else left / restarts)]
        if runs[0].status != INTERRUPTED:  # each start has its own part of a time budget
            runs.append(self._run([rows[1:] for rows in noise], watch.left()))
        return self._found(runs)

    def _single(self, estimates: list[Tensor], noise: list[Tensor], watch: Watch) -> list[Found]:
        """One descent for each observation, from the start that a short trial favours."""
        short = replace(self.descent, steps=max(1, round(TRIAL * self.descent.steps)))
        trial, left = self._replace(descent=short, progress=None), watch.left()
        part = None if left is None else TRIAL * left
        runs = [trial._gentle()._run(estimates, part), trial._run(noise, part)]
        stopped = [run for run in runs if run.status == INTERRUPTED]
        if stopped:
            return self._found(runs)
        better = (runs[0].costs < runs[1].costs).tolist()
        found: dict[int, Found] = {}
        for side, own in ((True, self._gentle()), (False, self)):
            chosen = [n for n, wins in enumerate(better) if wins == side]
            starts = [(estimates if side else noise)[n] for n in chosen]
            if chosen:
                some = own._some(chosen)
                found |= zip(chosen, some._found([some._run(starts, watch.left())]), strict=True)
        return [found[n] for n in range(len(better))]

    def _gentle(self) -> "Starts":
        """For the estimates: a lower rate, and the model itself."""
        gentle = replace(self.descent, lr=GENTLE * self.descent.lr)
        return self._replace(cost=self.plain_cost, descent=gentle)

    def _some(self, chosen: list[int]) -> "Starts":
        """For some of the observations."""
        return self._replace(
            observations=[self.observations[n] for n in chosen],
            labels=[self.labels[n] for n in chosen],
            units=self.units[chosen],
        )

    def _estimates(
        self, regress: Regress | None, generator: torch.Generator, watch: Watch, restarts: int
    ) -> list[Tensor] | None:
        """One candidate for each observation; `None` without a regression."""
        if regress is None:
            return None
        left = watch.left()
        share = Watch(None if left is None else left / (4 * restarts))
        found = regress.estimates(self.observations, self.labels, generator, share)
        return [inputs[None] for inputs in found]

    def _run(self, starts: list[Tensor], time_budget: float | None) -> Minimum:
        """All observations beside each other."""
        first, each = self.observations[0], len(starts[0])
        sent = torch.stack([sent_row(o) for o in self.observations])
        rows = (torch.stack(list(self.labels)), sent, self.units)
        return minimise(
            self.cost,
            torch.cat(starts),
            replace(self.descent, time_budget=time_budget),
            data=tuple(row.repeat_interleave(each, 0) for row in rows),
            low=first.low,
            high=first.high,
            progress=self.progress,
        )

    def _found(self, runs: list[Minimum]) -> list[Found]:
        """Of each observation."""
        count = len(self.observations)
        per_run = [(run, len(run.inputs) // count) for run in runs]
        found = []
        for number in range(count):
            own = [(run, slice(number * k, (number + 1) * k)) for run, k in per_run]
            inputs = torch.cat([run.inputs[mine] for run, mine in own])
            costs = torch.cat([run.costs[mine] for run, mine in own])
            order = costs.argsort()
            status = next((run.status for run in runs if run.status != FINISHED), FINISHED)
            found.append(Found(inputs[order], costs[order], self._history(own), status))
        return found

    def _history(self, runs: list[tuple[Minimum, slice]]) -> list[tuple[int, float]]:
        """The least cost so far, over the steps of all runs."""
        history: list[tuple[int, float]] = []
        for number, (run, mine) in enumerate(runs):
            for step, past in run.history:
                before = history[-1][1] if number else float("inf")
                history.append(
                    (number * self.descent.steps + step, min(before, float(past[mine].min())))
                )
        return history


CLEARLY = 0.5
"""One misfit is clearly less than another if it is less than this share of it."""


def fits_better(
    observation: Observation, guess: Reconstruction, other: Reconstruction
) -> bool | None:
    """Whether the guess explains the message better than another result; `None` if about alike.

    A cost with total variation does not tell: on a deep untrained model random images explain all
    but 1 % of a message, and the smoothest image has the least cost.
    """
    own, its = (message_misfit(observation, each.inputs, each.targets) for each in (guess, other))
    return own < its if min(own, its) < CLEARLY * max(own, its) else None


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
        weights = ("total_variation", "smoothing")
        check_settings(self, counts=("restarts",), not_negative=weights)
        if self.total_variation_end is not None:
            check_not_negative(self.total_variation_end, "total_variation_end")
        self.descent()
        check_choice(self.distance, "distance", tuple(DISTANCES))
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
            peeled.append(self._closed_form(Run(observation, own, aside, early, self.progress)))
            if peeled[-1] is not None and peeled[-1].guess.status == INTERRUPTED:
                each = zip_longest(observations, labels, peeled)
                return [_stopped(o, own, found, aside) for o, own, found in each]
        rest = [n for n, found in enumerate(peeled) if found is None or not found.sure]
        if not rest:
            return [found.guess for found in peeled if found is not None]
        left, own_labels = [observations[n] for n in rest], [labels[n] for n in rest]
        others = iter(self._descend(left, own_labels, generator, watch))
        return [
            found.guess if found and found.sure else self._better(o, next(others), found, watch)
            for o, found in zip(observations, peeled, strict=True)
        ]

    def _closed_form(self, run: Run) -> Peeled | None:
        """The batch by unpooling, by exact inversion or by peeling, in this order.

        Unpooling and peeling say whether their guess is sure. Exact inversion returns what it can
        confirm, or nothing.
        """
        peel, unpool, heads = self.peel, self.unpool, list[Tensor]()
        if unpool is not None and not run.watch.is_over():
            unpool = unpool.configured(steps=min(unpool.images.steps, self.steps))
            aside = replace(run, generator=run.generator.clone_state())  # peeling stays the same
            unpooled = unpool.solve(aside, heads)
            if unpooled is not None:
                return Peeled(unpooled, solved=True, sure=unpooled.is_certain)
        if peel is None or run.watch.is_over():
            return None
        exact = ExactInversion().solve(run)
        if exact is not None:
            return Peeled(exact, solved=True, sure=True)
        if run.watch.is_over():
            return None
        peel = replace(peel, steps=min(peel.steps, self.steps))
        if run.observation.local is not None:
            return peel_local(peel, run)
        return peel.solve(run, heads[0] if heads else None)

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


def _stopped(
    observation: Observation, labels: Tensor, found: Peeled | None, generator: torch.Generator
) -> Reconstruction:
    """What a closed form had found when it was interrupted; noise where that is nothing."""
    if found is None:
        noise = noise_start(observation, 1, generator)[0]
        return Reconstruction(noise, labels, torch.inf, [], INTERRUPTED)
    return found.guess if found.sure else replace(found.guess, status=INTERRUPTED)

"""Many trials of the exact attacker."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import log2
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradveil._batches import check_classes, check_examples, check_pair, task_of
from gradveil._checks import check_count, check_flag, check_kind
from gradveil._random import generator_or_fresh, named_stream
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import LocalSteps, LossFunction, gradient_of
from gradveil.scoring import Interval, bootstrap_interval, share_interval

from ._identify import Identification, Identify
from ._observation import Observation, ThreatModel, observe


class Draw(NamedTuple):
    """Examples for some trials."""

    candidates: tuple[Tensor, Tensor]
    truths: tuple[Tensor, Tensor]
    """The true examples, one for each trial."""
    places: list[int]
    """Where the truth is among the candidates."""
    rest: tuple[Tensor, Tensor] | None
    used: Tensor
    """Which examples have a role, as a mask."""

    def batch(self, trial: int) -> tuple[Tensor, Tensor]:
        """The client's batch, with the truth at its first place."""
        inputs, targets = (part[trial : trial + 1] for part in self.truths)
        if self.rest is None:
            return inputs, targets
        return torch.cat([inputs, self.rest[0]]), torch.cat([targets, self.rest[1]])


class Population(NamedTuple):
    """Examples to draw from, and what the draws should be like."""

    inputs: Tensor
    targets: Tensor
    candidates: int
    batch_size: int
    one_class: bool

    @classmethod
    def checked(
        cls,
        examples: tuple[Tensor, Tensor],
        num_classes: int,
        candidates: int,
        batch_size: int,
        one_class: bool,
        **counts: int,
    ) -> "Population":
        """Require examples of numbers or tokens, and counts."""
        tokens = gradient_of(check_pair(examples, "examples")[0]).takes_tokens
        inputs, targets = check_examples(examples, "examples", num_classes, tokens=tokens)
        counts = {"candidates": candidates, "batch_size": batch_size, **counts}
        for name, value in counts.items():
            check_count(value, name)
        check_classes(num_classes)
        check_flag(one_class, "one_class")
        if one_class and task_of(targets) != "classification":
            raise ValueError(
                "Parameter `one_class` should be False where targets are not one class label for"
                f" each example. Found True with targets that are {task_of(targets)}."
            )
        return cls(inputs, targets, candidates, batch_size, one_class)

    def draws(self, trials: int, per_draw: int, generator: torch.Generator) -> Iterator[Draw]:
        """For so many trials in all, each draw when it is asked for."""
        for start in range(0, trials, per_draw):
            yield self.draw(min(per_draw, trials - start), generator)

    def draw(self, count: int, generator: torch.Generator) -> Draw:
        """Candidates, truths and the rest of the batch, no example in two of these roles."""
        inputs, targets, needed, batch_size, one_class = self
        order = _shuffled(len(inputs), generator)
        labels = targets.cpu()[order]
        pool = torch.ones(len(labels), dtype=torch.bool)
        if one_class:
            pool = labels == _label(labels, needed, generator)
        chosen = pool.nonzero().flatten()[:needed]
        others = torch.ones_like(pool)
        others[chosen] = False
        rest = others.nonzero().flatten()[: batch_size - 1]
        if len(chosen) < needed or len(rest) < batch_size - 1:
            raise ValueError(
                f"Parameter `examples` should hold at least {needed + batch_size - 1} examples, for"
                f" the candidates and the rest of the batch. Found {len(inputs)}. Ask for fewer"
                " candidates."
            )
        chosen, rest = order[chosen].to(inputs.device), order[rest].to(inputs.device)
        picked = torch.randint(needed, (count,), generator=generator, device=generator.device)
        truths = chosen[picked.to(chosen.device)]
        known = (inputs[rest], targets[rest]) if batch_size > 1 else None
        used = torch.zeros(len(inputs), dtype=torch.bool)
        used[torch.cat([chosen, rest]).cpu()] = True
        own, some = (inputs[truths], targets[truths]), (inputs[chosen], targets[chosen])
        return Draw(some, own, picked.tolist(), known, used)

    def neighbours(
        self, draw: Draw, count: int, generator: torch.Generator
    ) -> list[tuple[Tensor, Tensor]]:
        """For each of the other places of the batch up to `count` examples, the true one first.

        Fewer where fewer are left: whoever has fewer to choose from knows more.
        """
        order = _shuffled(len(self.inputs), generator)
        free, sets = ~draw.used[order], []
        for own, label in zip(*(draw.rest or ((), ())), strict=True):
            fitting = free & (self.targets.cpu()[order] == int(label)) if self.one_class else free
            others = fitting.nonzero().flatten()[: count - 1]
            if not len(others):
                raise ValueError(
                    "Parameter `examples` should hold more than the candidates, for the other"
                    " places of the batch. Found none that is left. Ask for fewer candidates."
                )
            free[others] = False
            taken = order[others].to(self.inputs.device)
            sets.append((_with(own, self.inputs[taken]), _with(label, self.targets[taken])))
        return sets


def _shuffled(count: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(count, generator=generator, device=generator.device).cpu()


def _with(first: Tensor, others: Tensor) -> Tensor:
    return torch.cat([first.unsqueeze(0), others])


def _label(labels: Tensor, needed: int, generator: torch.Generator) -> int:
    """That of a random example whose class has enough: means over draws are means over the data."""
    counts = torch.bincount(labels)
    enough = (counts[labels] >= needed).nonzero().flatten()
    if not len(enough):
        raise ValueError(
            f"Parameter `examples` should hold at least {needed} examples of one class. Found at"
            f" most {int(counts.max())}. Ask for fewer candidates, or use"
            " one_class=False."
        )
    place = torch.randint(len(enough), (1,), generator=generator, device=generator.device)
    return int(labels[enough[int(place)]])


@dataclass(frozen=True)
class Trial:
    """One message and what the attacker made of it.

    >>> Trial(draw=0, rank=1.0, is_first=True, bits=2.0, error=0.1, prior_error=0.5).is_first
    True
    """

    draw: int
    """Trials of one draw share their candidates and the rest of the batch."""
    rank: float
    """Of the truth."""
    is_first: bool
    """Whether the most likely candidate was the truth."""
    bits: float
    """log₂ N minus the entropy of the posterior."""
    error: float
    """The mean squared error per entry of the posterior's mean, in the units of the inputs."""
    prior_error: float
    """The same for the mean of the candidates: the guess without a message."""


@dataclass(frozen=True)
class IdentificationReport:
    """Rates and means with 95 % intervals.

    >>> trials = [Trial(n, 1.0, n > 0, bits=2.0, error=0.1, prior_error=0.5) for n in range(4)]
    >>> IdentificationReport(candidates=8, trials=tuple(trials)).rate.mean
    0.75
    """

    candidates: int
    trials: tuple[Trial, ...]

    @property
    def chance(self) -> float:
        """The rate of a guess without a message, 1/N."""
        return 1 / self.candidates

    @property
    def rate(self) -> Interval:
        """How often the most likely candidate is the truth, with its Clopper-Pearson interval.

        Where trials share a draw they are not independent: the interval then also holds that of
        the draws' rates. With few draws (say three) it may still be too narrow.
        """
        firsts = [trial.is_first for trial in self.trials]
        found = share_interval(sum(firsts), len(firsts))
        if len({trial.draw for trial in self.trials}) == len(self.trials):
            return found
        drawn = self._interval([float(first) for first in firsts])
        low, high = min(found.low, drawn.low), max(found.high, drawn.high)
        return replace(found, low=max(0.0, low), high=min(1.0, high))

    @property
    def rank(self) -> Interval:
        """The mean place of the truth; (N + 1)/2 is chance."""
        return self._interval([trial.rank for trial in self.trials])

    @property
    def bits(self) -> Interval:
        """What a message tells in the mean: log₂ N minus the mean entropy of the posterior."""
        found, most = self._interval([trial.bits for trial in self.trials]), log2(self.candidates)
        return replace(found, low=max(0.0, found.low), high=min(most, found.high))

    @property
    def error(self) -> Interval:
        """The mean squared error per entry of the posterior's mean.

        Where nearly all are told apart it is a mean of few large terms: the interval's upper end is
        then too low, more often than in one of 40 cases; its lower end is what bounds rest on.
        """
        return self._interval([trial.error for trial in self.trials])

    @property
    def prior_error(self) -> Interval:
        """The same without a message."""
        return self._interval([trial.prior_error for trial in self.trials])

    def _interval(self, numbers: Sequence[float]) -> Interval:
        """Draws outside, trials inside: those of one draw are not independent."""
        draws: dict[int, list[float]] = {}
        for trial, number in zip(self.trials, numbers, strict=True):
            draws.setdefault(trial.draw, []).append(number)
        groups = [torch.tensor(group, dtype=torch.float64) for group in draws.values()]
        if all(len(group) == 1 for group in groups):
            return bootstrap_interval(torch.cat(groups), generator=named_stream("identification"))
        return bootstrap_interval(groups, generator=named_stream("identification"))


def identify_trials(
    model: nn.Module,
    loss_fn: LossFunction,
    examples: tuple[Tensor, Tensor],
    defense: Defense,
    *,
    num_classes: int,
    candidates: int = 60,
    batch_size: int = 1,
    trials: int = 20,
    per_draw: int = 1,
    one_class: bool = True,
    public_mechanism: AnyMechanism | None = None,
    local: LocalSteps | None = None,
    generator: torch.Generator | None = None,
) -> IdentificationReport:
    """How well an attacker who knows the rest of the batch tells the candidates apart.

    Each draw takes candidates and the rest of a batch from the examples, without repetition. In
    each of its trials a client sends a batch with one candidate in it, and `Identify` says which.
    All draws are made first: with one seed several defenses meet the same examples.

    Args:
        model: The model that the server sent out.
        loss_fn: The loss of the training.
        examples: Inputs and targets to draw from; inputs may be the ids of tokens.
        defense: What the client does to its message; the attacker knows it with its settings.
        num_classes: Of the data.
        candidates: N, how many there are to choose from.
        batch_size: Examples in the client's batch, all but one of which the attacker knows.
        trials: How many messages in all.
        per_draw: Trials that share candidates and rest. Where the plan depends on the batch, the
            attacker plans once for each candidate and draw.
        one_class: Whether all candidates of a draw have the same label, which the attacker knows.
        public_mechanism: As for `observe`.
        local: FedAvg's local steps; gradients are sent if `None`.
        generator: For all draws.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
    >>> from gradveil.models import build_model
    >>> generator = torch.Generator().manual_seed(0)
    >>> examples = torch.rand(40, 3, generator=generator), torch.zeros(40, dtype=torch.int64)
    >>> report = identify_trials(
    ...     build_model("mlp", sizes=[3, 4, 2]), cross_entropy, examples, NoDefense(),
    ...     num_classes=2, candidates=8, trials=4, generator=generator,
    ... )
    >>> report.rate.mean
    1.0
    """
    population = Population.checked(
        examples, num_classes, candidates, batch_size, one_class, trials=trials, per_draw=per_draw
    )
    check_kind(defense, "defense", Defense, "Use for example `NoDefense()`.")
    generator = generator_or_fresh(generator)
    setting, done = Setting(model, loss_fn, num_classes, local, public_mechanism), list[Trial]()
    for number, draw in enumerate([*population.draws(trials, per_draw, generator)]):
        messages = setting.messages(draw, defense, generator)
        found = Identify(draw.candidates, draw.rest).many(messages, generator)
        for one, truth, place in zip(found, draw.truths[0], draw.places, strict=True):
            done.append(judged(number, one, truth, place))
    return IdentificationReport(candidates, tuple(done))


@dataclass(frozen=True)
class Setting:
    """What all trials share: the model, its loss, and how a client sends."""

    model: nn.Module
    loss_fn: LossFunction
    num_classes: int
    local: LocalSteps | None = None
    public_mechanism: AnyMechanism | None = None

    def messages(
        self, draw: Draw, defense: Defense, generator: torch.Generator
    ) -> list[Observation]:
        """What an attacker who knows the defense sees of all trials of a draw."""
        return [
            observe(
                self.model,
                self.loss_fn,
                draw.batch(trial),
                deepcopy(defense),
                threat=ThreatModel(mechanism="known"),
                num_classes=self.num_classes,
                local=self.local,
                public_mechanism=self.public_mechanism,
                generator=generator,
            )
            for trial in range(len(draw.places))
        ]


def judged(number: int, found: Identification, truth: Tensor, place: int) -> Trial:
    """One trial's result beside the truth."""
    blind = torch.zeros_like(found.log_likelihoods)
    return Trial(
        draw=number,
        rank=found.rank(place),
        is_first=found.best == place,
        bits=found.bits,
        error=found.error(truth),
        prior_error=replace(found, log_likelihoods=blind).error(truth),
    )

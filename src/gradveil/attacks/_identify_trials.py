"""Many trials of the exact attacker: one defense, or several on the same candidates."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import log2
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradveil._batches import check_classes, check_examples, check_pair, task_of
from gradveil._checks import check_choice, check_count, check_flag, check_kind
from gradveil._random import generator_or_fresh, named_stream
from gradveil._typing import Tensors
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import LocalSteps, LossFunction, gradient_of, trainable_parameters, values_of
from gradveil.scoring import Interval, bootstrap_interval, share_interval

from ._identify import LABELS, Candidates, Identification, Identify, likelihood_table
from ._observation import Observation, ThreatModel, observe


class Draw(NamedTuple):
    """Examples for some trials."""

    candidates: tuple[Tensor, Tensor]
    truths: tuple[Tensor, Tensor]
    """The true examples, one for each trial."""
    places: list[int | None]
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

    def judged(self, number: int, found: "Sequence[Identification]") -> "list[Trial]":
        """Each trial's result beside the truth."""
        each = zip(found, self.truths[0], self.places, strict=True)
        return [judged(number, one, truth, place) for one, truth, place in each]


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

    def draws(
        self, trials: int, per_draw: int, generator: torch.Generator, among: bool = True
    ) -> Iterator["Draw"]:
        """For so many trials in all, each draw when it is asked for."""
        for start in range(0, trials, per_draw):
            yield self.draw(min(per_draw, trials - start), generator, among)

    def draw(self, count: int, generator: torch.Generator, among: bool = True) -> "Draw":
        """Candidates, truths and the rest of the batch, no example in two of these roles."""
        inputs, targets, candidates, batch_size, one_class = self
        order = _shuffled(len(inputs), generator)
        labels = targets.cpu()[order]
        needed = candidates if among else candidates + count
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
        some = chosen[:candidates]
        places: list[int | None] = [None] * count
        truths = chosen[candidates:]
        if among:
            picked = torch.randint(
                candidates, (count,), generator=generator, device=generator.device
            )
            places, truths = [*picked.tolist()], some[picked.to(some.device)]
        known = (inputs[rest], targets[rest]) if batch_size > 1 else None
        used = torch.zeros(len(inputs), dtype=torch.bool)
        used[torch.cat([chosen, rest]).cpu()] = True
        own = inputs[truths], targets[truths]
        return Draw((inputs[some], targets[some]), own, places, known, used)

    def neighbours(
        self, draw: "Draw", count: int, generator: torch.Generator
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
    rank: float | None
    """Of the truth; `None` where it was not among the candidates."""
    is_first: bool | None
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
    def rate(self) -> Interval | None:
        """How often the most likely candidate is the truth, with its Clopper-Pearson interval.

        Where trials share a draw they are not independent: the interval then also holds that of
        the draws' rates. With few draws (say three) it may still be too narrow. `None` where the
        truth was not among the candidates.
        """
        firsts = [trial.is_first for trial in self.trials if trial.is_first is not None]
        if not firsts:
            return None
        found = share_interval(sum(firsts), len(firsts))
        if len({trial.draw for trial in self.trials}) == len(self.trials):
            return found
        drawn = self._interval([float(first) for first in firsts])
        low, high = min(found.low, drawn.low), max(found.high, drawn.high)
        return replace(found, low=max(0.0, low), high=min(1.0, high))

    @property
    def rank(self) -> Interval | None:
        """The mean place of the truth; (N + 1)/2 is chance."""
        ranks = [trial.rank for trial in self.trials]
        if any(rank is None for rank in ranks):
            return None
        return self._interval([rank for rank in ranks if rank is not None])

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
    among: bool = True,
    labels: str = "known",
    public_mechanism: AnyMechanism | None = None,
    local: LocalSteps | None = None,
    generator: torch.Generator | None = None,
) -> IdentificationReport:
    """How well an attacker who knows the rest of the batch tells the candidates apart.

    Each draw takes candidates and the rest of a batch from the examples, without repetition. In
    each of its trials a client sends a batch with one candidate in it, and `Identify` says which.

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
        among: Whether the truth is among the candidates.
        labels: As for `Identify`.
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
    check_choice(labels, "labels", LABELS)
    check_flag(among, "among")
    check_kind(defense, "defense", Defense, "Use for example `NoDefense()`.")
    generator = generator_or_fresh(generator)
    setting, done = Setting(model, loss_fn, num_classes, local, public_mechanism), list[Trial]()
    for number, draw in enumerate(population.draws(trials, per_draw, generator, among)):
        messages = setting.messages(draw, defense, generator)
        found = Identify(draw.candidates, draw.rest, labels=labels).many(messages, generator)
        done += draw.judged(number, found)
    return IdentificationReport(candidates, tuple(done))


@dataclass(frozen=True)
class Setting:
    """What all trials share: the model, its loss, and how a client sends."""

    model: nn.Module
    loss_fn: LossFunction
    num_classes: int
    local: LocalSteps | None = None
    public_mechanism: AnyMechanism | None = None

    def observed(
        self, draw: Draw, trial: int, defense: Defense, generator: torch.Generator
    ) -> Observation:
        """What an attacker who knows the defense sees of a trial."""
        return observe(
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

    def messages(
        self, draw: Draw, defense: Defense, generator: torch.Generator
    ) -> list[Observation]:
        """Of all trials of a draw."""
        return [self.observed(draw, n, defense, generator) for n in range(len(draw.places))]


def judged(number: int, found: Identification, truth: Tensor, place: int | None) -> Trial:
    """One trial's result beside the truth."""
    blind = torch.zeros_like(found.log_likelihoods)
    return Trial(
        draw=number,
        rank=None if place is None else found.rank(place),
        is_first=None if place is None else found.best == place,
        bits=found.bits,
        error=found.error(truth),
        prior_error=replace(found, log_likelihoods=blind).error(truth),
    )


MOST_KEPT = 2**26
"""Numbers in the messages that are kept for the next defense; more are computed again."""


class Lineup(NamedTuple):
    """One draw of candidates, with messages that no defense has touched."""

    draw: Draw
    candidates: list[Tensors] | None
    """The message of the batch with each candidate; `None` where they are too large to keep."""
    truths: list[Tensors] | None
    """The same of each trial's own batch, as the client computes it."""


@dataclass(frozen=True)
class Lineups:
    """Trials in which several defenses meet the same candidates, truths and batches.

    What does not depend on the defense is computed once: the draws and all undefended messages.
    Beside that, each defense costs its own plan, its noise and a table of likelihoods. Comparing
    two defenses is sharper, too, since both are tried on the same examples. Make one with
    `draw_lineups`.
    """

    setting: Setting
    lineups: tuple[Lineup, ...]

    def report(
        self, defense: Defense, generator: torch.Generator | None = None
    ) -> IdentificationReport:
        """How well the candidates are told apart under this defense.

        As in `identify_trials`; but a plan that does not depend on the private batch is made once
        for all trials of a draw.

        Args:
            defense: What the client does to its message; the attacker knows it with its settings.
            generator: For its plan and its noise.
        """
        check_kind(defense, "defense", Defense, "Use for example `NoDefense()`.")
        generator = generator_or_fresh(generator)
        done: list[Trial] = []
        for number, lineup in enumerate(self.lineups):
            found = self._found(lineup, defense, generator)
            done += lineup.draw.judged(number, found)
        count = len(self.lineups[0].draw.candidates[0])
        return IdentificationReport(count, tuple(done))

    def _found(
        self, lineup: Lineup, defense: Defense, generator: torch.Generator
    ) -> list[Identification]:
        draw, messages = lineup.draw, self._messages(lineup, defense, generator)
        candidates = Candidates(messages[0], *draw.candidates, draw.rest, 0)
        if _sends_plain(messages[0], draw):
            candidates = replace(candidates, known=lineup.candidates)
        table = likelihood_table(messages, candidates, generator)
        return [Identification(row, draw.candidates[0]) for row in table]

    def _messages(
        self, lineup: Lineup, defense: Defense, generator: torch.Generator
    ) -> list[Observation]:
        """What the attacker sees of each trial."""
        draw, setting = lineup.draw, self.setting
        if defense.about.private or not defense.about.usual:
            return setting.messages(draw, defense, generator)
        first = setting.observed(draw, 0, defense, generator)
        assert first.mechanism is not None
        seen = [first]
        for trial in range(1, len(draw.places)):
            sent = first.mechanism.apply(self._truth(lineup, trial, first), generator)
            seen.append(replace(first, sent=sent, labels=None, label_counts=None))
        return seen  # the candidates have the labels

    def _truth(self, lineup: Lineup, trial: int, like: Observation) -> Tensors:
        """The message of a trial before noise."""
        if lineup.truths is not None and _sends_plain(like, lineup.draw):
            return lineup.truths[trial]
        inputs, targets = lineup.draw.batch(trial)
        return values_of(like.message(targets), inputs)


def draw_lineups(
    model: nn.Module,
    loss_fn: LossFunction,
    examples: tuple[Tensor, Tensor],
    *,
    num_classes: int,
    candidates: int = 60,
    batch_size: int = 1,
    trials: int = 20,
    per_draw: int = 1,
    one_class: bool = True,
    local: LocalSteps | None = None,
    generator: torch.Generator | None = None,
) -> Lineups:
    """Draw candidates, truths and batches on which defenses can be compared.

    Args:
        model: See `identify_trials`, as for all that follow. It should not change afterwards.
        loss_fn: The loss of the training.
        examples: Inputs and class labels to draw from.
        num_classes: Of the data.
        candidates: N, how many there are to choose from.
        batch_size: Examples in the client's batch, all but one of which the attacker knows.
        trials: How many messages in all, for each defense.
        per_draw: Trials that share candidates and rest.
        one_class: Whether all candidates of a draw have the same label.
        local: FedAvg's local steps; gradients are sent if `None`.
        generator: For the draws.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil.models import build_model
    >>> from gradveil import NoDefense
    >>> examples = torch.rand(40, 3), torch.zeros(40, dtype=torch.int64)
    >>> model = build_model("mlp", sizes=[3, 4, 2])
    >>> lineups: Lineups = draw_lineups(
    ...     model, cross_entropy, examples, num_classes=2, candidates=8, trials=4
    ... )
    >>> lineups.report(NoDefense(), generator=torch.Generator().manual_seed(0)).rate.mean
    1.0
    """
    population = Population.checked(
        examples, num_classes, candidates, batch_size, one_class, trials=trials, per_draw=per_draw
    )
    draws = list(population.draws(trials, per_draw, generator_or_fresh(generator)))
    setting = Setting(model, loss_fn, num_classes, local)
    entries = sum(p.numel() for p in trainable_parameters(model).values())
    kept = entries * (len(draws) * candidates + trials) <= MOST_KEPT
    lineups = [_with_messages(setting, d) if kept else Lineup(d, None, None) for d in draws]
    return Lineups(setting, tuple(lineups))


def _with_messages(setting: Setting, draw: Draw) -> Lineup:
    inputs, targets = draw.batch(0)
    plain = Observation(
        setting.model,
        setting.loss_fn,
        trainable_parameters(setting.model),
        len(inputs),
        tuple(inputs.shape[1:]),
        setting.num_classes,
        local=setting.local,
        tokens=gradient_of(inputs).takes_tokens,
        task=task_of(targets),
        target_shape=tuple(targets.shape[1:]),
    )
    candidates = list(Candidates(plain, *draw.candidates, draw.rest, 0).values())
    batches = (draw.batch(trial) for trial in range(len(draw.places)))
    return Lineup(draw, candidates, [values_of(plain.message(y), x) for x, y in batches])


def _sends_plain(observation: Observation, draw: Draw) -> bool:
    """Whether the defense takes the message as it is, before its mechanism."""
    plain = observation.plain_message(draw.batch(0)[1])
    return observation.defense is None or observation.defense.prepared(plain) is plain

"""The attacker that is Bayes-optimal over candidates, and the bound that its trials give."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradveil._checks import (
    WrongValue,
    check_classes,
    check_count,
    check_examples,
    check_flag,
    check_inputs,
    check_kind,
    check_labels,
    check_pair,
    check_targets,
    task_of,
)
from gradveil._random import generator_or_fresh, named_stream
from gradveil.defenses import Defended, Defense
from gradveil.messages import LocalSteps, LossFunction, gradient_of, values_of
from gradveil.scoring import Interval, bootstrap_interval, share_interval

from ._likelihood import Doubt, doubt_between, log_likelihoods, same_noise
from ._observation import Observation, ThreatModel, check_known, check_observation, observe

Examples = tuple[Tensor, Tensor]  # inputs and targets


@dataclass(frozen=True)
class Identification:
    """The posterior over the candidates, from a uniform prior."""

    log_likelihoods: Tensor
    inputs: Tensor
    """The candidates."""

    @property
    def posterior(self) -> Tensor:
        return self.log_likelihoods.softmax(0)

    @property
    def best(self) -> int:
        return int(self.log_likelihoods.argmax())

    @property
    def mean(self) -> Tensor:
        """E[candidate | sent], the guess of least mean squared error."""
        weights = self.posterior.to(self.inputs)
        return torch.einsum("k,k...->...", weights, self.inputs)

    def error(self, truth: Tensor) -> float:
        """The squared error of the mean, per entry; of tokens the mean share of wrong ones."""
        if self.inputs.is_floating_point():
            return float((self.mean - truth).double().square().mean())
        wrong = (self.inputs != truth).flatten(1).double().mean(1)
        return float((self.posterior.to(wrong) * wrong).sum())

    @property
    def bits(self) -> float:
        """What the message told: log₂ N minus the entropy of the posterior."""
        entropy = float(torch.special.entr(self.posterior).sum()) / math.log(2)
        return max(0.0, math.log2(len(self.log_likelihoods)) - entropy)

    def rank(self, truth: int) -> float:
        """The place of the true candidate, 1 if it is the most likely; equal ones share theirs."""
        others, own = self.log_likelihoods, self.log_likelihoods[truth]
        return 0.5 + int((others > own).sum()) + int((others == own).sum()) / 2


@dataclass(frozen=True)
class Identify:
    """Which candidate was in the batch: p(candidate | sent) ∝ p(sent | candidate), exactly.

    The informed attacker of differential privacy: it knows all other examples of the batch, the
    model, the defense and its settings. Its candidates are public examples; the truth may be among
    them or not. Nothing is optimised: one message for each candidate, and the likelihood of what
    was sent under the mechanism. So no attacker with the same knowledge is right more often, as far
    as the likelihood is exact.

    Where the plan comes from the private batch, it is evidence: the attacker plans at each
    candidate's batch with probes of its own, and log p_k = -½ Σ_i ((y_i - g_ki)² / Σ_ki + log Σ_ki)
    has the log-determinant. With estimated sensitivities it is an estimate, and one who measures
    them better can be right a little more often. How far two plans from one batch are apart is
    measured at eight candidates (`Doubt`). Isotropic noise and magnitude pruning have no doubt.

    Args:
        candidates: The inputs, and the label of each: one of them is the batch's first example.
        rest: The other examples in the client's order, and their labels.

    >>> model, labels = torch.nn.Linear(3, 2), torch.tensor([0, 0])
    >>> images = torch.tensor([[1.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    >>> observation = observe(
    ...     model, cross_entropy, (images[1:], labels[1:]),
    ...     GradientNoise(1e-3), threat=ThreatModel(mechanism="known"), num_classes=2)
    >>> Identify((images, labels))(observation).best
    1
    """

    candidates: Examples
    rest: Examples | None = None

    def __post_init__(self) -> None:
        tokens = gradient_of(check_pair(self.candidates, "candidates")[0]).takes_tokens
        for name, pair in (("candidates", self.candidates), ("rest", self.rest)):
            if pair is not None:
                known, labels = check_pair(pair, name)
                check_inputs(known, name, tokens=tokens)
                if check_targets(labels, len(known), name) == "classification":
                    check_labels(labels, name)

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Identification:
        """The posterior; the observation's defense or mechanism must be known."""
        return self.many([observation], generator)[0]

    def many(
        self, observations: Sequence[Observation], generator: torch.Generator | None = None
    ) -> list[Identification]:
        """The same for several of one model, defense and rest: each candidate is evaluated once."""
        inputs, size = self.candidates[0], 1 + (0 if self.rest is None else len(self.rest[0]))
        shape = tuple(inputs.shape[1:])
        for seen in observations:
            check_observation(seen, tokens=gradient_of(inputs).takes_tokens)
            if (shape, size) != (tuple(seen.input_shape), seen.batch_size):
                fitting = f"{seen.batch_size} examples of shape {tuple(seen.input_shape)}"
                expected = f"fit the observation of {fitting}, and so should `rest`"
                found = f"candidates of shape {shape} beside {size - 1} other examples"
                raise WrongValue("candidates", expected, found)
        if not observations:
            return []
        generator = generator_or_fresh(generator)
        if any(seen.mechanism is None for seen in observations):
            table = self._planned(observations, generator)
        else:
            table = self._known(observations)
        return [Identification(row, inputs) for row in table]

    def batch(self, index: int) -> Examples:
        """The whole batch with this candidate at its first place."""
        inputs, targets = (each[index : index + 1] for each in self.candidates)
        if self.rest is None:
            return inputs, targets
        return torch.cat([inputs, self.rest[0]]), torch.cat([targets, self.rest[1]])

    def _known(self, observations: Sequence[Observation]) -> Tensor:
        """log p(sent | candidate), a row for each observation and a column for each candidate.

        Some candidates at a time: memory for few messages beside those that were sent.
        """
        columns, sent = list[Tensor](), [seen.sent for seen in observations]
        plans: list[tuple[Any, list[int]]] = []
        for row, seen in enumerate(observations):
            rows = next((rows for plan, rows in plans if same_noise(plan, seen.mechanism)), [])
            if not rows:
                plans.append((seen.mechanism, rows))
            rows.append(row)
        count = max(1, 2**24 // sum(value.numel() for value in sent[0].values()))
        batches = map(self.batch, range(len(self.candidates[0])))
        each = (values_of(observations[0].message(targets), inputs) for inputs, targets in batches)
        while values := list(islice(each, count)):
            columns.append(torch.empty(len(sent), len(values), dtype=torch.float64))
            for plan, rows in plans:
                columns[-1][rows] = log_likelihoods(plan, values, [sent[r] for r in rows]).cpu()
        return torch.cat(columns, 1)

    def _planned(self, observations: Sequence[Observation], generator: torch.Generator) -> Tensor:
        """The same with the plan that each candidate leads to, by the attacker's own probes."""
        first, count = observations[0], len(self.candidates[0])
        check_known(first)
        defense, sent = first.defense, [seen.sent for seen in observations]
        assert defense is not None

        def defended(index: int) -> Defended:
            inputs, targets = self.batch(index)
            message = first.plain_message(targets)
            return defense.without_memory().respond(message, inputs, generator)

        planned, doubts = dict[int, Defended](), list[Doubt]()
        for index in (place * count // 8 for place in range(8)):
            one, other = defended(index), defended(index)
            planned[index] = one
            doubts.append(doubt_between(one.mechanism, other.mechanism, one.values))
            if not doubts[0].levels_differ:
                break
        doubt, steps = Doubt.mean(doubts), (planned.get(k) or defended(k) for k in range(count))
        columns = [log_likelihoods(s.mechanism, [s.values], sent, doubt).cpu() for s in steps]
        return torch.cat(columns, 1)


FEWER = "Ask for fewer candidates, or use one_class=False."


class Draw(NamedTuple):
    """Examples for some trials, by their numbers: the candidates, and the rest of the batch."""

    candidates: Tensor
    places: list[int]
    """Where the truth of each trial is among the candidates."""
    rest: Tensor


class Population(NamedTuple):
    """Examples to draw from, and what the draws should be like."""

    inputs: Tensor
    targets: Tensor
    candidates: int
    batch_size: int
    one_class: bool

    def at(self, numbers: Tensor) -> Examples:
        numbers = numbers.to(self.inputs.device)
        return self.inputs[numbers], self.targets[numbers]

    def batch(self, draw: Draw, trial: int) -> Examples:
        """The client's batch, with the truth at its first place."""
        truth = draw.candidates[draw.places[trial]]
        return self.at(torch.cat([truth[None], draw.rest]))

    def draw(self, count: int, generator: torch.Generator) -> Draw:
        """Candidates, truths and the rest of the batch, no example in two of these roles."""
        needed, others = self.candidates, self.batch_size - 1
        order = torch.randperm(len(self.inputs), generator=generator)
        labels, pool = self.targets.cpu()[order], order
        if self.one_class:
            # that of a random example whose class has enough: means over draws are means over data
            counts = torch.bincount(labels)
            enough = (counts[labels] >= needed).nonzero().flatten()
            if not len(enough):
                expected = f"hold at least {needed} examples of one class"
                raise WrongValue("examples", expected, f"at most {int(counts.max())}", FEWER)
            place = torch.randint(len(enough), (1,), generator=generator, device=generator.device)
            pool = order[labels == labels[enough[int(place)]]]
        chosen = pool[:needed]
        rest = order[~torch.isin(order, chosen)][:others]
        if len(chosen) < needed or len(rest) < others:
            expected = f"hold at least {needed + others} examples, candidates and rest of the batch"
            raise WrongValue("examples", expected, str(len(order)), FEWER)
        picked = torch.randint(needed, (count,), generator=generator, device=generator.device)
        return Draw(chosen, picked.tolist(), rest)


@dataclass(frozen=True)
class Trial:
    """One message and what the attacker made of it: the rank of the truth, and how far it was."""

    draw: int
    """Trials of one draw share their candidates and the rest of the batch."""
    rank: float
    is_first: bool
    """Whether the most likely candidate was the truth."""
    bits: float
    error: float
    prior_error: float
    """That of the mean of the candidates, the guess without a message."""


@dataclass(frozen=True)
class IdentificationReport:
    """Rates and means with 95 % intervals.

    Where there is no `reason`, no attacker's mean squared error over the data is below `error`, and
    none is right more often than `rate`. Place by place: after the examples of a batch were matched
    to the truth errors may be smaller.
    """

    candidates: int
    """N, how many there were to choose from."""
    trials: tuple[Trial, ...]
    batch_size: int = 1
    one_class: bool = True
    """Whether the attacker knows the label: all candidates have it."""
    reason: str = ""
    """Why `error` is an estimate and no bound; empty where it is one."""
    fewer: "tuple[IdentificationReport, ...]" = ()
    """Of the same trials with 8, 32, 128 and 256 candidates, as far as they are fewer."""

    @property
    def trend(self) -> "tuple[IdentificationReport, ...]":
        """For fewer candidates and for N: the error grows with N in the mean."""
        return (*self.fewer, self)

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
        drawn = self._interval(firsts, 1.0)
        return replace(found, low=min(found.low, drawn.low), high=max(found.high, drawn.high))

    @property
    def bits(self) -> Interval:
        """What a message tells in the mean: log₂ N minus the mean entropy of the posterior."""
        return self._interval([trial.bits for trial in self.trials], math.log2(self.candidates))

    @property
    def error(self) -> Interval:
        """The mean squared error per entry of the posterior's mean, in the units of the inputs.

        Where nearly all are told apart it is a mean of few large terms: the interval's upper end is
        then too low, more often than in one of 40 cases; bounds rest on its lower end.
        """
        return self._interval([trial.error for trial in self.trials])

    @property
    def prior_error(self) -> Interval:
        """Without a message: the most that the bound can say with N candidates."""
        return self._interval([trial.prior_error for trial in self.trials])

    def _interval(self, numbers: Sequence[float], most: float = torch.inf) -> Interval:
        """Draws outside, trials inside: those of one draw are not independent."""
        draws = torch.tensor([trial.draw for trial in self.trials])
        values = torch.tensor(numbers, dtype=torch.float64)
        groups = [values[draws == draw] for draw in draws.unique()]
        nested = values if len(groups) == len(values) else groups
        found = bootstrap_interval(nested, generator=named_stream("identification"))
        return replace(found, low=max(0.0, found.low), high=min(most, found.high))


def identify_trials(
    model: nn.Module,
    loss_fn: LossFunction,
    examples: Examples,
    defense: Defense,
    *,
    num_classes: int,
    candidates: int = 60,
    batch_size: int = 1,
    trials: int = 20,
    per_draw: int = 1,
    one_class: bool = True,
    local: LocalSteps | None = None,
    generator: torch.Generator | None = None,
) -> IdentificationReport:
    """How well an attacker tells the true example from others of the same population.

    Each draw takes candidates and the rest of a batch from the examples, without repetition. In
    each of its trials a client sends a batch with one candidate in it, and `Identify` says which.
    All draws are made first: with one seed several defenses meet the same examples.

    It is also a lower bound on every attacker's error that needs no model of the data. An attacker
    who is told a set S of N examples, the truth and N - 1 others of the same population, in any
    order, and the rest r of the batch, can ignore both. So for every estimate x̂ from what was
    sent, y,

        E‖x̂(y) - x‖² ≥ E‖E[x | y, S, r] - x‖²,

    and the right-hand side can be computed: given S the prior is uniform, and p(y | x, r) is the
    mechanism's likelihood. Nor does any attacker pick the truth out of N more often. It is a mean
    over data, which the trials estimate; see the interval. Larger N are closer to what an attacker
    without candidates can do, and never above it. Where the likelihood is an estimate (a plan from
    the private batch), the report says so in `reason`.

    The attacker knows the defense with its settings; what `observe` takes, too, is as there.

    Args:
        examples: To draw from, an independent sample of the population; inputs may be the ids of
            tokens.
        candidates: N.
        trials: How many messages in all.
        per_draw: Trials that share candidates and rest. Where the plan depends on the batch, the
            attacker plans once for each candidate and draw.
        one_class: Whether all candidates of a draw have the same label, which the attacker knows.
            Classes with fewer than N examples are left out of the mean over the data.

    >>> generator = torch.Generator().manual_seed(0)
    >>> examples = torch.rand(40, 3, generator=generator), torch.zeros(40, dtype=torch.int64)
    >>> report = identify_trials(
    ...     build_model("mlp", sizes=[3, 4, 2]), cross_entropy, examples, NoDefense(),
    ...     num_classes=2, candidates=8, trials=4, generator=generator,
    ... )
    >>> report.rate.mean, report.reason
    (1.0, '')
    """
    counts = (candidates, batch_size, trials, per_draw)
    for value, name in zip(counts, ("candidates", "batch_size", "trials", "per_draw"), strict=True):
        check_count(value, name)
    check_kind(defense, "defense", Defense, "Use for example `NoDefense()`.")
    check_classes(num_classes)
    check_flag(one_class, "one_class")
    tokens = gradient_of(check_pair(examples, "examples")[0]).takes_tokens
    inputs, targets = check_examples(examples, "examples", num_classes, tokens=tokens)
    if one_class and (task := task_of(targets)) != "classification":
        expected = "be False where targets are not one class label for each example"
        raise WrongValue("one_class", expected, f"True with targets that are {task}")
    population = Population(inputs, targets, candidates, batch_size, one_class)
    generator = generator_or_fresh(generator)
    starts = range(0, trials, per_draw)
    draws = [population.draw(min(per_draw, trials - start), generator) for start in starts]
    sizes = (8, 32, 128, 256, candidates)
    done: dict[int, list[Trial]] = {size: [] for size in sizes if size <= candidates}
    client = partial(
        observe, model, loss_fn, threat=ThreatModel(mechanism="known"), num_classes=num_classes,
        local=local, generator=generator,
    )  # fmt: skip
    for number, draw in enumerate(draws):
        batches = (population.batch(draw, trial) for trial in range(len(draw.places)))
        messages = [client(batch, deepcopy(defense)) for batch in batches]
        known = population.at(draw.rest) if batch_size > 1 else None
        found = Identify(population.at(draw.candidates), known).many(messages, generator)
        for size, judged in done.items():
            judged += [_judged(number, *one, size) for one in zip(found, draw.places, strict=True)]
    estimated = (
        "the plan is made from the private batch with random probes, so the likelihood of what was"
        " sent is an estimate, and an attacker who computes it better has a smaller error"
    )
    reason = estimated if defense.about.varies else ""
    *fewer, whole = (
        IdentificationReport(size, tuple(judged), batch_size, one_class, reason)
        for size, judged in done.items()
    )
    return replace(whole, fewer=tuple(fewer))


def _judged(number: int, found: Identification, place: int, size: int) -> Trial:
    """One trial's result among the truth and the first `size` - 1 other candidates."""
    if size < len(found.inputs):
        some = torch.tensor([place, *(k for k in range(size) if k != place)][:size])
        found, place = Identification(found.log_likelihoods[some], found.inputs[some]), 0
    truth, blind = found.inputs[place], torch.zeros_like(found.log_likelihoods)
    return Trial(
        draw=number,
        rank=found.rank(place),
        is_first=found.best == place,
        bits=found.bits,
        error=found.error(truth),
        prior_error=replace(found, log_likelihoods=blind).error(truth),
    )

"""The same candidates for any number of defenses."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradveil._batches import check_classes, check_examples, check_pair, task_of
from gradveil._checks import check_flag, check_kind
from gradveil._random import generator_or_fresh
from gradveil._typing import Tensors
from gradveil.defenses import Defense
from gradveil.messages import (
    LocalSteps,
    LossFunction,
    gradient_of,
    trainable_parameters,
    values_of,
)

from .._observation import Observation, observe
from .._threat import ThreatModel
from ._candidates import Candidates
from ._draws import Draw, batch_of, draw_examples
from ._identification import Identification
from ._likelihoods import likelihood_table
from ._report import IdentificationReport, Trial
from ._trials import check_trials, judged

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

    model: nn.Module
    loss_fn: LossFunction
    num_classes: int
    local: LocalSteps | None
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
            truths = zip(found, lineup.draw.truths[0], lineup.draw.places, strict=True)
            done += [judged(number, *each) for each in truths]
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
        trials = range(len(lineup.draw.places))
        if defense.plan_is_private or defense.steps_unlike(Defense):
            return [self._observed(lineup, trial, defense, generator) for trial in trials]
        first = self._observed(lineup, 0, defense, generator)
        assert first.mechanism is not None
        others = [
            first.mechanism.apply(self._truth(lineup, trial, first), generator)
            for trial in trials[1:]
        ]
        return [
            first,  # the candidates have the labels
            *(replace(first, sent=sent, labels=None, label_counts=None) for sent in others),
        ]

    def _observed(
        self, lineup: Lineup, trial: int, defense: Defense, generator: torch.Generator
    ) -> Observation:
        return observe(
            self.model,
            self.loss_fn,
            batch_of(lineup.draw, trial),
            deepcopy(defense),
            threat=ThreatModel(mechanism="known"),
            num_classes=self.num_classes,
            local=self.local,
            generator=generator,
        )

    def _truth(self, lineup: Lineup, trial: int, like: Observation) -> Tensors:
        """The message of a trial before noise."""
        if lineup.truths is not None and _sends_plain(like, lineup.draw):
            return lineup.truths[trial]
        inputs, targets = batch_of(lineup.draw, trial)
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
    tokens = gradient_of(check_pair(examples, "examples")[0]).takes_tokens
    inputs, targets = check_examples(examples, "examples", num_classes, tokens=tokens)
    check_trials(candidates, batch_size, trials, per_draw)
    check_classes(num_classes)
    check_flag(one_class, "one_class")
    generator = generator_or_fresh(generator)
    entries = sum(p.numel() for p in trainable_parameters(model).values())
    draws = [
        draw_examples(
            inputs, targets, candidates, min(per_draw, trials - start), batch_size, one_class,
            True, generator,
        )
        for start in range(0, trials, per_draw)
    ]  # fmt: skip
    blank = Lineups(model, loss_fn, num_classes, local, ())
    kept = entries * (len(draws) * candidates + trials) <= MOST_KEPT
    lineups = [_with_messages(blank, draw) if kept else Lineup(draw, None, None) for draw in draws]
    return replace(blank, lineups=tuple(lineups))


def _with_messages(blank: Lineups, draw: Draw) -> Lineup:
    inputs, targets = batch_of(draw, 0)
    plain = Observation(
        blank.model,
        blank.loss_fn,
        trainable_parameters(blank.model),
        len(inputs),
        tuple(inputs.shape[1:]),
        blank.num_classes,
        local=blank.local,
        tokens=gradient_of(inputs).takes_tokens,
        task=task_of(targets),
        target_shape=tuple(targets.shape[1:]),
    )
    candidates = list(Candidates(plain, *draw.candidates, draw.rest, 0).values())
    batches = (batch_of(draw, trial) for trial in range(len(draw.places)))
    return Lineup(draw, candidates, [values_of(plain.message(y), x) for x, y in batches])


def _sends_plain(observation: Observation, draw: Draw) -> bool:
    """Whether the defense takes the message as it is, before its mechanism."""
    plain = observation.plain_message(batch_of(draw, 0)[1])
    return observation.defense is None or observation.defense.prepared(plain) is plain

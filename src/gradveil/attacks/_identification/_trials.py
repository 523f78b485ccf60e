"""Many trials of the exact attacker on one defense."""

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradveil._batches import check_classes, check_examples, check_pair
from gradveil._checks import check_choice, check_count, check_flag, check_kind
from gradveil._random import generator_or_fresh
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import LocalSteps, LossFunction, gradient_of

from .._observation import Observation, observe
from .._threat import ThreatModel
from ._draws import Draw, batch_of, draw_examples
from ._identification import Identification
from ._identify import LABELS, Identify
from ._report import IdentificationReport, Trial


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
    tokens = gradient_of(check_pair(examples, "examples")[0]).takes_tokens
    inputs, targets = check_examples(examples, "examples", num_classes, tokens=tokens)
    check_trials(candidates, batch_size, trials, per_draw)
    check_choice(labels, "labels", LABELS)
    check_classes(num_classes)
    check_flag(one_class, "one_class")
    check_flag(among, "among")
    check_kind(defense, "defense", Defense, "Use for example `NoDefense()`.")
    generator = generator_or_fresh(generator)
    done: list[Trial] = []
    for number, start in enumerate(range(0, trials, per_draw)):
        count = min(per_draw, trials - start)
        draw = draw_examples(
            inputs, targets, candidates, count, batch_size, one_class, among, generator
        )
        messages = sent_messages(
            model, loss_fn, draw, defense, num_classes, local, public_mechanism, generator
        )
        attack = Identify(draw.candidates, draw.rest, labels=labels)
        found = attack.many(messages, generator)
        truths = zip(found, draw.truths[0], draw.places, strict=True)
        done += [judged(number, *each) for each in truths]
    return IdentificationReport(candidates, tuple(done))


def sent_messages(
    model: nn.Module,
    loss_fn: LossFunction,
    draw: Draw,
    defense: Defense,
    num_classes: int,
    local: LocalSteps | None,
    public_mechanism: AnyMechanism | None,
    generator: torch.Generator,
) -> list[Observation]:
    """What an attacker who knows the defense sees of each trial."""
    return [
        observe(
            model,
            loss_fn,
            batch_of(draw, trial),
            deepcopy(defense),
            threat=ThreatModel(mechanism="known"),
            num_classes=num_classes,
            local=local,
            public_mechanism=public_mechanism,
            generator=generator,
        )
        for trial in range(len(draw.places))
    ]


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


def check_trials(candidates: int, batch_size: int, trials: int, per_draw: int) -> None:
    """Require counts."""
    for name, value in (
        ("candidates", candidates),
        ("batch_size", batch_size),
        ("trials", trials),
        ("per_draw", per_draw),
    ):
        check_count(value, name)

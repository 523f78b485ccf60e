"""Many trials of the exact attacker on one defense."""

from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradveil._batches import check_batch, check_classes
from gradveil._checks import check_choice, check_count, check_flag, check_kind
from gradveil._random import generator_or_fresh
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import LocalSteps, LossFunction

from .._observation import observe
from .._threat import ThreatModel
from ._identification import Identification
from ._identify import LABELS, Identify
from ._report import IdentificationReport, Trial


class Draw(NamedTuple):
    """Examples for some trials."""

    candidates: tuple[Tensor, Tensor]
    truths: tuple[Tensor, Tensor]
    """The true examples, one for each trial."""
    places: list[int | None]
    """Where the truth is among the candidates."""
    rest: tuple[Tensor, Tensor] | None


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
        examples: Inputs and class labels to draw from.
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
    """
    inputs, targets = check_batch(examples, "examples", num_classes)
    _check_settings(candidates, batch_size, trials, per_draw, labels)
    check_classes(num_classes)
    check_flag(one_class, "one_class")
    check_flag(among, "among")
    check_kind(defense, "defense", Defense, "Use for example `NoDefense()`.")
    generator = generator_or_fresh(generator)
    done: list[Trial] = []
    for number, start in enumerate(range(0, trials, per_draw)):
        count = min(per_draw, trials - start)
        draw = _draw(inputs, targets, candidates, count, batch_size, one_class, among, generator)
        observations = [
            observe(
                model,
                loss_fn,
                _batch(draw, trial),
                deepcopy(defense),
                threat=ThreatModel(mechanism="known"),
                num_classes=num_classes,
                local=local,
                public_mechanism=public_mechanism,
                generator=generator,
            )
            for trial in range(count)
        ]
        attack = Identify(draw.candidates, draw.rest, labels=labels)
        done += _judged(number, draw, attack.many(observations, generator))
    return IdentificationReport(candidates, tuple(done))


def _judged(number: int, draw: Draw, found: list[Identification]) -> list[Trial]:
    """Each trial's result beside the truth."""
    guess = draw.candidates[0].mean(0)
    trials = []
    for one, truth, place in zip(found, draw.truths[0], draw.places, strict=True):
        trials.append(
            Trial(
                draw=number,
                rank=None if place is None else one.rank(place),
                is_first=None if place is None else one.best == place,
                bits=one.bits,
                error=float((one.mean - truth).double().square().mean()),
                prior_error=float((guess - truth).double().square().mean()),
            )
        )
    return trials


def _draw(
    inputs: Tensor,
    targets: Tensor,
    candidates: int,
    count: int,
    batch_size: int,
    one_class: bool,
    among: bool,
    generator: torch.Generator,
) -> Draw:
    """Candidates, truths and the rest of the batch, no example in two of these roles."""
    order = torch.randperm(len(inputs), generator=generator, device=generator.device).cpu()
    labels = targets.cpu()[order]
    needed = candidates if among else candidates + count
    pool = torch.ones_like(labels, dtype=torch.bool)
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
        picked = torch.randint(candidates, (count,), generator=generator, device=generator.device)
        places, truths = [*picked.tolist()], some[picked.to(some.device)]
    known = (inputs[rest], targets[rest]) if batch_size > 1 else None
    return Draw((inputs[some], targets[some]), (inputs[truths], targets[truths]), places, known)


def _label(labels: Tensor, needed: int, generator: torch.Generator) -> int:
    """A class with enough examples."""
    enough = (torch.bincount(labels) >= needed).nonzero().flatten()
    if not len(enough):
        raise ValueError(
            f"Parameter `examples` should hold at least {needed} examples of one class. Found at"
            f" most {int(torch.bincount(labels).max())}. Ask for fewer candidates, or use"
            " one_class=False."
        )
    place = torch.randint(len(enough), (1,), generator=generator, device=generator.device)
    return int(enough[int(place)])


def _batch(draw: Draw, trial: int) -> tuple[Tensor, Tensor]:
    """The client's batch, with the truth at its first place."""
    own = tuple(part[trial : trial + 1] for part in draw.truths)
    if draw.rest is None:
        return own[0], own[1]
    return torch.cat([own[0], draw.rest[0]]), torch.cat([own[1], draw.rest[1]])


def _check_settings(
    candidates: int, batch_size: int, trials: int, per_draw: int, labels: str
) -> None:
    for name, value in (
        ("candidates", candidates),
        ("batch_size", batch_size),
        ("trials", trials),
        ("per_draw", per_draw),
    ):
        check_count(value, name)
    check_choice(labels, "labels", LABELS)

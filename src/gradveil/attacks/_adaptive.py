"""The attack that knows the defense: the likelihood of what was sent as the matching cost."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import torch

from gradveil._batches import check_pair
from gradveil._checks import (
    check_count,
    check_kind,
    check_methods,
    check_not_negative,
    check_optional_callable,
    check_positive,
)
from gradveil._random import generator_or_fresh
from gradveil.theory import GaussianPrior

from ._attack import Attack, Progress, shorter
from ._evidence import Channel, Energy, Evidence, TotalVariation
from ._inverting import InvertingGradients
from ._observation import Observation
from ._plan_reading import PlanReader, plan_can_be_read
from ._reconstruction import FINISHED, Reconstruction
from ._search import (
    Descent,
    Finish,
    PosteriorSearch,
    Watch,
    check_alike,
    labels_of,
    message_of,
    sent_row,
)

UNEXPLAINED = 0.5
"""The share of the message's power that noise has at least where the plan is read."""


@dataclass(frozen=True)
class Adaptive(Attack):
    """Maximum a posteriori: minimises -log p(sent | g(x)) + E(x) under the known mechanism.

    -log p is ½ Σ_i dist(g_i, I_i)² / std_i²: entries with noise are points weighted by 1/std_i²,
    kept entries of a pruned message equalities, pruned ones intervals |g_i| ≤ τ_i, clipped ones
    rays, rounded ones cells. E is the prior's energy. A mechanism that is not public is planned
    again at the attacker's own estimate. Where it was planned from the private batch, its noise
    levels are evidence, too: `reader` reads them, and its result counts if it is more likely.

    The intervals open gradually: at first everything counts as sent as it is, as for an unaware
    attack. The unaware attack's own result and starts from noise go through the same last stages,
    and the most likely one wins. Where even that one leaves a part of the message unexplained, all
    are wrong, each in its own way, and the mean of the likely ones, images of equal labels matched
    first, is nearer to the truth than any. A descent goes on from that mean; if its end explains
    the message it is returned, else the point half way. Where the plan was made at the attacker's
    estimate the unaware result as it was counts, too, for that may have led the others astray.

    Args:
        unaware: The attack whose result is the warm start; its steps and rate are used, too.
        prior: `TotalVariation`, the theory's `GaussianPrior`, `Denoised` (learned from public
            examples), or `None` (flat).
        restarts: How many starts from N(0, I) beside the warm one.
        smoothing: As in `InvertingGradients`, for the starts from noise.
        looseness: The relative misfit, at the start and at the end, that costs as much as one unit
            of the prior's energy for each entry of the inputs; for entries without noise.
        probes: For the sensitivities at the attacker's estimate.
        finish: The second-order steps at the end.
        reader: Reads plans that were made from one private example, where noise hides most of the
            message; `None`: does not.
        time_budget: Seconds after which the best so far is returned.
        progress: Called with (step, steps, cost).

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientNoise
    >>> from gradveil.attacks import ThreatModel, observe
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 8, 2])
    >>> private = torch.tensor([[0.2, 0.7, 0.4]]), torch.tensor([1])
    >>> seen = observe(model, cross_entropy, private, GradientNoise(1e-3), num_classes=2,
    ...     threat=ThreatModel(mechanism="known"), generator=torch.Generator().manual_seed(1))
    >>> attack = Adaptive(InvertingGradients(steps=20), prior=None, finish=None)
    >>> attack(seen, torch.Generator().manual_seed(0)).inputs.shape
    torch.Size([1, 3])
    """

    knows_defense = True
    runs_together = True

    unaware: InvertingGradients = field(default_factory=InvertingGradients.strong)
    prior: Energy | GaussianPrior | None = field(default_factory=lambda: TotalVariation(2.0))
    _: KW_ONLY
    restarts: int = 3
    smoothing: float = 0.0
    looseness: tuple[float, float] = (3e-2, 3e-3)
    probes: int = 8
    finish: Finish | None = field(default_factory=Finish)
    reader: PlanReader | None = field(default_factory=PlanReader)
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        _check_options(self)

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack one observation whose defense or mechanism is known."""
        return self.many([observation], generator)[0]

    def many(
        self, observations: Sequence[Observation], generator: torch.Generator | None = None
    ) -> list[Reconstruction]:
        """Attack several observations of one model and defense in one batched run."""
        check_alike(observations)
        for observation in observations:
            _check_known(observation)
        seen = [o.defense if o.defense is None else o.defense.seen_in(o.sent) for o in observations]
        alike = all(s is o.defense for s, o in zip(seen, observations, strict=True))
        if not alike and len(observations) > 1:  # each has a message of its own
            return [self(observation, generator) for observation in observations]
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        known = [
            replace(o, labels=labels_of(o, generator), defense=defense)
            for o, defense in zip(observations, seen, strict=True)
        ]
        unaware = replace(
            self.unaware, time_budget=watch.left(), progress=self.progress or self.unaware.progress
        )
        warm = unaware.many(known, generator)
        if any(result.status != FINISHED for result in warm):
            return warm
        found = PosteriorSearch(self, known, generator, watch).from_warm_starts(warm)
        return [self._read(o, r, generator, watch) for o, r in zip(known, found, strict=True)]

    def _read(
        self,
        observation: Observation,
        result: Reconstruction,
        generator: torch.Generator,
        watch: Watch,
    ) -> Reconstruction:
        """The result, or what the noise levels show if that is more likely."""
        if self.reader is None or result.status != FINISHED or not plan_can_be_read(observation):
            return result
        message, sent = message_of(observation), sent_row(observation)
        with torch.no_grad():
            left = (sent - message(result.inputs, result.targets)).square().sum()
        if left < UNEXPLAINED * sent.square().sum():
            return result
        reader = self.reader.configured(time_budget=watch.left())
        return reader.improve(observation, result, generator)

    def configured(
        self,
        steps: int | None = None,
        time_budget: float | None = None,
        progress: Progress | None = None,
    ) -> "Adaptive":
        """The attack with other settings: the steps are those of the unaware one."""
        return replace(
            self,
            unaware=self.unaware.configured(steps=steps, progress=progress),
            progress=progress or self.progress,
            time_budget=shorter(self.time_budget, time_budget),
        )

    @property
    def work(self) -> float:
        """The unaware attack, the searches from noise, the last stages and that from their mean."""
        candidates = self.restarts + 0.25 * (self.restarts + 1) + 0.5
        return self.unaware.work + candidates * self.unaware.steps

    @property
    def reports(self) -> float:
        """A little less: parts of it do not tell, and searches from noise run side by side."""
        return 0.9 * (self.unaware.reports + 1.75 * self.unaware.steps)

    def evidence(self, channel: Channel, progress: float, inputs: int) -> Evidence:
        """What the observation says at this stage of the annealing."""
        start, end = self.looseness
        opening = min(1.0, max(0.0, 2 * progress - 0.25))
        return channel.evidence(opening, start * math.exp(progress * math.log(end / start)), inputs)

    def descent(self, share: float, lr: float, settled: float, left: float | None) -> Descent:
        """A share of the unaware attack's steps."""
        steps = max(1, round(share * self.unaware.steps))
        every = self.unaware.history_every
        return Descent(steps, lr, "signed-adam", "steps", every, left, None, settled)


def _check_known(observation: Observation) -> None:
    if observation.defense is None and observation.mechanism is None:
        raise ValueError(
            "Parameter `observation` should tell the defense or the mechanism. Found neither. Use"
            " ThreatModel(mechanism='known') or 'realised', or an unaware attack."
        )


def _check_options(attack: "Adaptive") -> None:
    """Require options of `Adaptive` that make sense."""
    check_count(attack.restarts, "restarts")
    check_count(attack.probes, "probes")
    check_not_negative(attack.smoothing, "smoothing")
    for value in check_pair(attack.looseness, "looseness"):
        check_positive(value, "looseness")
    check_kind(attack.unaware, "unaware", InvertingGradients, "Use `InvertingGradients()`.")
    if attack.reader is not None:
        check_kind(attack.reader, "reader", PlanReader, "Use `PlanReader()`.")
    if attack.finish is not None:
        check_kind(attack.finish, "finish", Finish, "Use `Finish()`.")
    if attack.prior is not None and not isinstance(attack.prior, GaussianPrior):
        check_methods(attack.prior, "prior", ("gradient", "curvature"), "`TotalVariation()`")
    if attack.time_budget is not None:
        check_not_negative(attack.time_budget, "time_budget")
    check_optional_callable(attack.progress, "progress", "Give a function, or None.")

"""The attack that knows the defense: the likelihood of what was sent as the matching cost."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor

from gradveil._batches import check_pair
from gradveil._checks import check_kind, check_positive
from gradveil._random import generator_or_fresh
from gradveil.theory import GaussianPrior

from ._attack import FINISHED, Attack, Progress, Reconstruction, check_settings, shorter
from ._channel import Channel, depends_on_inputs, plan_channel
from ._descent import (
    SETTLED,
    Cost,
    Descent,
    Minimum,
    Watch,
    check_alike,
    consensus,
    message_of,
    minimise,
    noise_start,
    sent_row,
)
from ._inverting_gradients import InvertingGradients
from ._matching import Evidence
from ._model_layers import SmoothTwin
from ._observation import Observation, check_known
from ._plan_reader import PlanReader, plan_can_be_read
from ._priors import Denoised, Energy, TotalVariation, check_prior, energy_of
from ._refine import Finish, Refined, Stages, refine_one, split
from ._targets import Run, labels_of

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
        check_settings(self, counts=("restarts", "probes"), not_negative=("smoothing",))
        check_prior(self.prior)
        for value in check_pair(self.looseness, "looseness"):
            check_positive(value, "looseness")
        check_kind(self.unaware, "unaware", InvertingGradients, "Use `InvertingGradients()`.")
        for name, kind in (("reader", PlanReader), ("finish", Finish)):
            if getattr(self, name) is not None:
                check_kind(getattr(self, name), name, kind, f"Use `{kind.__name__}()`.")

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
            check_known(observation)
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
        return [
            self._read(Run(o, _labels(o), generator, watch), result)
            for o, result in zip(known, found, strict=True)
        ]

    def _read(self, run: Run, result: Reconstruction) -> Reconstruction:
        """The result, or what the noise levels show if that is more likely."""
        seen = run.observation
        if self.reader is None or result.status != FINISHED or not plan_can_be_read(seen):
            return result
        message, sent = message_of(seen), sent_row(seen)
        with torch.no_grad():
            left = (sent - message(result.inputs, result.targets)).square().sum()
        if left < UNEXPLAINED * sent.square().sum():
            return result
        return self.reader.configured(time_budget=run.watch.left()).improve(run, result)

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


EXPLAINED = 2.0
"""How many times the last looseness may be left unexplained by a candidate that is taken alone."""

ALIKE = 1.25
"""How many times what the best candidate leaves unexplained others may leave that count, too."""

FAST = 2.0
"""The rate of the search from noise, over the unaware attack's: a likelihood has more narrow
valleys than a cosine, and a rate that stays high for longer steps over more of them."""

SOLVED = 1e-6
"""What a solution may leave unexplained where nothing is hidden."""


class PosteriorSearch:
    """One batched attack: candidate k of observation n is number n · (restarts + 1) + k."""

    def __init__(
        self,
        attack: "Adaptive",
        observations: list[Observation],
        generator: torch.Generator,
        watch: Watch,
    ) -> None:
        self.attack, self.observations = attack, observations
        self.generator, self.watch = generator, watch
        self.first = observations[0]
        self.energy = energy_of(attack.prior)
        self.inputs = self.first.batch_size * math.prod(self.first.input_shape)

    def from_warm_starts(self, warm: list[Reconstruction]) -> list[Reconstruction]:
        """Plan, search from noise, plan again, then bring all candidates to the end."""
        channels = [self._plan(o, r.inputs) for o, r in zip(self.observations, warm, strict=True)]
        if all(map(self._is_solved, self.observations, channels, warm)):
            return warm
        searched = self._search(channels)
        from_noise = searched.inputs.unflatten(0, (len(warm), -1))
        candidates = torch.cat([torch.stack([r.inputs for r in warm])[:, None], from_noise], dim=1)
        costs = self._costs(channels, candidates)
        best = [c[int(cost.argmin())] for c, cost in zip(candidates, costs, strict=True)]
        if searched.status != FINISHED:
            return [
                replace(r, inputs=inputs, loss=float(cost.min()), status=searched.status)
                for r, inputs, cost in zip(warm, best, costs, strict=True)
            ]
        if depends_on_inputs(self.first):
            channels = [self._plan(o, x) for o, x in zip(self.observations, best, strict=True)]
        polished = self._polish(channels, candidates)
        return self._finished(channels, polished, candidates)

    def _is_solved(
        self, observation: Observation, channel: Channel, result: Reconstruction
    ) -> bool:
        """Whether nothing was hidden and the unaware attack has it all: a prior would only hurt."""
        if bool((channel.low < channel.high).any() | channel.std.any() | channel.silent.any()):
            return False
        if result.is_certain:
            return True
        values = message_of(observation)(result.inputs, _labels(observation))
        return channel.unexplained(self._final(channel), values) < SOLVED

    def _plan(self, observation: Observation, estimate: Tensor) -> Channel:
        labels = _labels(observation)
        return plan_channel(observation, labels, estimate, self.attack.probes, self.generator)

    def _search(self, channels: list[Channel]) -> Minimum:
        attack = self.attack
        start = torch.cat(
            [noise_start(o, attack.restarts, self.generator) for o in self.observations]
        )
        descent = attack.descent(1.0, FAST * attack.unaware.lr, SETTLED, self.watch.left())
        descent = replace(descent, decay="cosine")
        rows = tuple(torch.stack(parts) for parts in zip(*map(_parts, channels), strict=True))
        return self._minimise(self._annealed(), start, descent, rows)

    def _polish(self, channels: list[Channel], candidates: Tensor) -> Minimum:
        descent = self.attack.descent(0.25, self.attack.unaware.lr / 10, 0.0, self.watch.left())
        rows = tuple(torch.stack(part) for part in zip(*map(self._final, channels), strict=True))
        return self._minimise(self._settled(), candidates.flatten(0, 1), descent, rows)

    def _settled(self) -> Cost:
        """The last stages' cost: nothing is annealed any more."""
        message = message_of(self.first)

        def cost(inputs: Tensor, progress: float, labels: Tensor, *evidence: Tensor) -> Tensor:
            return Evidence(*evidence).misfit(message(inputs, labels)) + self.energy(inputs)

        return cost

    def _finished(
        self, channels: list[Channel], polished: Minimum, before: Tensor
    ) -> list[Reconstruction]:
        results, each = [], before.shape[1]
        for number, (observation, channel) in enumerate(
            zip(self.observations, channels, strict=True)
        ):
            mine = slice(number * each, (number + 1) * each)
            part = Minimum(polished.inputs[mine], polished.costs[mine], status=polished.status)
            end = self._finish(observation, channel, part)
            end = self._agreed(observation, channel, part, end, before[number, 0])
            history = [(step, float(past[mine].min())) for step, past in polished.history]
            labels = _labels(observation)
            results.append(Reconstruction(end.inputs, labels, end.cost, history, end.status))
        return results

    def _agreed(
        self,
        observation: Observation,
        channel: Channel,
        polished: Minimum,
        end: Refined,
        unaware: Tensor,
    ) -> Refined:
        """The end if it explains the message or is far ahead; else a descent from a mean."""
        evidence, labels = self._final(channel), _labels(observation)

        def told(inputs: Tensor) -> Tensor:
            with torch.no_grad():
                return message_of(observation)(inputs, labels)

        left = channel.unexplained(evidence, told(end.inputs))
        if end.status != FINISHED or left <= EXPLAINED * self.attack.looseness[1]:
            return end
        others, limit = polished.inputs[polished.costs.argsort()[1:]], ALIKE * left
        near = [x for x in others if channel.unexplained(evidence, told(x)) <= limit]
        if depends_on_inputs(observation):
            near.append(unaware)
        if not near:
            return end
        mean = consensus(torch.stack([end.inputs, *near]), labels)[0]
        return self._from_mean(observation, channel, mean)

    def _from_mean(self, observation: Observation, channel: Channel, mean: Tensor) -> Refined:
        """A descent from the mean of candidates; half way back unless it explains the message."""
        descent = self.attack.descent(0.5, self.attack.unaware.lr / 2, 0.0, self.watch.left())
        alone = PosteriorSearch(self.attack, [observation], self.generator, self.watch)
        evidence, message = self._final(channel), message_of(observation)
        rows = tuple(torch.stack(part) for part in zip(*map(self._final, [channel]), strict=True))
        found = alone._minimise(self._settled(), mean[None], descent, rows)
        inputs, cost = found.inputs[0], found.costs[0]
        with torch.no_grad():
            left = channel.unexplained(evidence, message(inputs, _labels(observation)))
            if left > EXPLAINED * self.attack.looseness[1]:
                inputs = (inputs + mean) / 2
                cost = alone._costs([channel], inputs[None, None])[0][0]
        return Refined(inputs, float(cost), found.status)

    def _finish(self, observation: Observation, channel: Channel, polished: Minimum) -> Refined:
        order = polished.costs.argsort()
        best = Refined(polished.inputs[order[0]], float(polished.costs[order[0]]), polished.status)
        if self.attack.finish is None or polished.status != FINISHED:
            return best
        evidence, labels = self._final(channel), _labels(observation)
        if isinstance(self.energy, Denoised):
            classes = observation.task == "classification"
            told = self.energy.knowing(labels) if classes else self.energy
            stages = Stages(observation, labels, evidence, told, self.attack.finish)
            return split(stages, told, best.inputs, self.watch)
        stages = Stages(observation, labels, evidence, self.energy, self.attack.finish)
        for index in order:
            refined = refine_one(stages, polished.inputs[index], self.watch)
            better = refined.inputs if refined.cost < best.cost else best.inputs
            best = Refined(better, min(refined.cost, best.cost), refined.status)
            if refined.status != FINISHED or self._explains(evidence, best.inputs, labels):
                break
        return best

    def _explains(self, evidence: Evidence, inputs: Tensor, labels: Tensor) -> bool:
        """Whether what is left of the misfit is small beside what the prior alone costs."""
        misfit = evidence.misfit(message_of(self.first)(inputs, labels))
        return bool(misfit < 0.1 * self.energy(inputs))

    def _annealed(self) -> Cost:
        """The search's cost: intervals open, looseness and smoothing fall."""
        attack = self.attack
        twin = SmoothTwin(self.first, attack.smoothing or 1.0)
        message = message_of(twin.observation if attack.smoothing > 0 else self.first)

        def cost(inputs: Tensor, progress: float, labels: Tensor, *channel: Tensor) -> Tensor:
            done = min(1.0, progress / SETTLED)
            twin.set_width((attack.smoothing or 1.0) * 0.01**done)
            evidence = attack.evidence(Channel(*channel), done, self.inputs)
            return evidence.misfit(message(inputs, labels)) + self.energy(inputs)

        return cost

    def _costs(self, channels: list[Channel], candidates: Tensor) -> list[Tensor]:
        """Of each candidate of each observation, by the final evidence."""
        message, all_costs = message_of(self.first), []
        with torch.no_grad():
            for observation, channel, mine in zip(
                self.observations, channels, candidates, strict=True
            ):
                evidence, labels = self._final(channel), _labels(observation)
                costs = [evidence.misfit(message(x, labels)) + self.energy(x) for x in mine]
                all_costs.append(torch.stack(costs))
        return all_costs

    def _final(self, channel: Channel) -> Evidence:
        return self.attack.evidence(channel, 1.0, self.inputs)

    def _minimise(
        self, cost: Cost, start: Tensor, descent: Descent, rows: tuple[Tensor, ...]
    ) -> Minimum:
        each = len(start) // len(self.observations)
        labels = torch.stack([_labels(o) for o in self.observations])
        data = tuple(part.repeat_interleave(each, 0) for part in (labels, *rows))
        return minimise(
            cost,
            start,
            descent,
            data=data,
            low=self.first.low,
            high=self.first.high,
            progress=self.attack.progress,
        )


def _parts(channel: Channel) -> tuple[Tensor, ...]:
    return channel.sent, channel.std, channel.low, channel.high, channel.silent, channel.clip


def _labels(observation: Observation) -> Tensor:
    assert observation.labels is not None
    return observation.labels

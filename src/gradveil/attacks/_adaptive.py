"""The attack that knows the defense: the likelihood of what was sent as the matching cost."""

import math
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor

from gradveil._checks import check_count, check_not_negative, check_positive
from gradveil._random import generator_or_fresh
from gradveil.theory import GaussianPrior

from ._candidates import labels_of, message_of, noise_start
from ._channel import Channel
from ._inverting_gradients import SETTLED, InvertingGradients
from ._matching import Evidence
from ._observation import Observation
from ._optimise import Cost, Descent, Minimum, Progress, Watch, minimise
from ._planning import depends_on_inputs, plan_channel
from ._reconstruction import FINISHED, Reconstruction
from ._refine import Finish, Refined
from ._regularisers import Energy, TotalVariation, energy_of
from ._smoothing import SmoothTwin
from ._stages import Stages, refine_one


@dataclass(frozen=True)
class Adaptive:
    """Maximum a posteriori: minimises -log p(sent | g(x)) + E(x) under the known mechanism.

    -log p is ½ Σ_i dist(g_i, I_i)² / std_i²: entries with noise are points weighted by 1/std_i²,
    kept entries of a pruned message equalities, pruned ones intervals |g_i| ≤ τ_i, clipped ones
    rays, rounded ones cells. E is the prior's energy. A mechanism that is not public is planned
    again at the attacker's own estimate.

    The intervals open gradually: at first everything counts as sent as it is, as for an unaware
    attack. The unaware attack's own result and starts from noise go through the same last stages,
    and the most likely one wins, so that knowing the defense does not hurt.

    Args:
        unaware: The attack whose result is the warm start; its steps and rate are used, too.
        prior: `TotalVariation`, the theory's `GaussianPrior`, or `None` (flat).
        restarts: How many starts from N(0, I) beside the warm one.
        smoothing: As in `InvertingGradients`, for the starts from noise.
        looseness: The relative misfit, at the start and at the end, that costs as much as one unit
            of the prior's energy for each entry of the inputs; for entries without noise.
        probes: For the sensitivities at the attacker's estimate.
        finish: The second-order steps at the end.
        time_budget: Seconds after which the best so far is returned.
        progress: Called with (step, steps, cost).
    """

    unaware: InvertingGradients = field(default_factory=InvertingGradients.strong)
    prior: Energy | GaussianPrior | None = field(default_factory=TotalVariation)
    _: KW_ONLY
    restarts: int = 1
    smoothing: float = 0.3
    looseness: tuple[float, float] = (3e-2, 3e-3)
    probes: int = 8
    finish: Finish | None = field(default_factory=Finish)
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_count(self.restarts, "restarts")
        check_count(self.probes, "probes")
        check_not_negative(self.smoothing, "smoothing")
        for value in self.looseness:
            check_positive(value, "looseness")

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack one observation whose defense or mechanism is known."""
        _check_known(observation)
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        labels = labels_of(observation, generator)
        known = replace(observation, labels=labels)
        warm = replace(self.unaware, time_budget=watch.left())(known, generator)
        if warm.status != FINISHED:
            return warm
        return _Run(self, known, labels, generator, watch).from_warm_start(warm)

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


class _Run:
    """One attack on one observation."""

    def __init__(
        self,
        attack: Adaptive,
        observation: Observation,
        labels: Tensor,
        generator: torch.Generator,
        watch: Watch,
    ) -> None:
        self.attack, self.observation, self.labels = attack, observation, labels
        self.generator, self.watch = generator, watch
        self.energy = energy_of(attack.prior)
        self.inputs = observation.batch_size * math.prod(observation.input_shape)

    def from_warm_start(self, warm: Reconstruction) -> Reconstruction:
        """Plan, search from noise, plan again, then bring all candidates to the end."""
        channel = self._plan(warm.inputs)
        searched = self._search(channel)
        candidates = torch.cat([warm.inputs.unsqueeze(0), searched.inputs])
        costs = self._costs(channel, candidates)
        if searched.status != FINISHED:
            best = int(costs.argmin())
            return replace(
                warm,
                inputs=candidates[best],
                loss=float(costs[best]),
                status=searched.status,
            )
        if depends_on_inputs(self.observation):
            channel = self._plan(candidates[int(costs.argmin())])
        polished = self._polish(channel, candidates)
        end = self._finish(channel, polished)
        history = [(step, float(past.min())) for step, past in polished.history]
        return Reconstruction(end.inputs, self.labels, end.cost, history, end.status)

    def _plan(self, estimate: Tensor) -> Channel:
        return plan_channel(
            self.observation, self.labels, estimate, self.attack.probes, self.generator
        )

    def _search(self, channel: Channel) -> Minimum:
        attack = self.attack
        start = noise_start(self.observation, attack.restarts, self.generator)
        descent = attack.descent(1.0, attack.unaware.lr, SETTLED, self.watch.left())
        return self._minimise(self._annealed(channel), start, descent)

    def _polish(self, channel: Channel, candidates: Tensor) -> Minimum:
        descent = self.attack.descent(0.25, self.attack.unaware.lr / 10, 0.0, self.watch.left())
        message, evidence = message_of(self.observation), self._final(channel)

        def cost(inputs: Tensor, progress: float) -> Tensor:
            values = message(inputs, self.labels)
            return evidence.misfit(values) + self.energy(inputs)

        return self._minimise(cost, candidates, descent)

    def _finish(self, channel: Channel, polished: Minimum) -> Refined:
        order = polished.costs.argsort()
        best = Refined(polished.inputs[order[0]], float(polished.costs[order[0]]), polished.status)
        if self.attack.finish is None or polished.status != FINISHED:
            return best
        evidence = self._final(channel)
        stages = Stages(self.observation, self.labels, evidence, self.energy, self.attack.finish)
        for index in order:
            found = refine_one(stages, polished.inputs[index], self.watch)
            better = found.inputs if found.cost < best.cost else best.inputs
            best = Refined(better, min(found.cost, best.cost), found.status)
            if found.status != FINISHED or self._explains(evidence, best.inputs):
                break
        return best

    def _explains(self, evidence: Evidence, inputs: Tensor) -> bool:
        """Whether what is left of the misfit is small beside what the prior alone costs."""
        misfit = evidence.misfit(message_of(self.observation)(inputs, self.labels))
        return bool(misfit < 0.1 * self.energy(inputs))

    def _annealed(self, channel: Channel) -> Cost:
        """The search's cost: intervals open, looseness and smoothing fall."""
        attack = self.attack
        twin = SmoothTwin(self.observation, attack.smoothing or 1.0)
        message = message_of(twin.observation if attack.smoothing > 0 else self.observation)

        def cost(inputs: Tensor, progress: float) -> Tensor:
            done = min(1.0, progress / SETTLED)
            twin.set_width((attack.smoothing or 1.0) * 0.01**done)
            evidence = attack.evidence(channel, done, self.inputs)
            return evidence.misfit(message(inputs, self.labels)) + self.energy(inputs)

        return cost

    def _costs(self, channel: Channel, candidates: Tensor) -> Tensor:
        message, evidence = message_of(self.observation), self._final(channel)
        return torch.stack(
            [evidence.misfit(message(x, self.labels)) + self.energy(x) for x in candidates]
        )

    def _final(self, channel: Channel) -> Evidence:
        return self.attack.evidence(channel, 1.0, self.inputs)

    def _minimise(self, cost: Cost, start: Tensor, descent: Descent) -> Minimum:
        low, high = self.observation.low, self.observation.high
        return minimise(cost, start, descent, low=low, high=high, progress=self.attack.progress)


def _check_known(observation: Observation) -> None:
    if observation.defense is None and observation.mechanism is None:
        raise ValueError(
            "Parameter `observation` should tell the defense or the mechanism. Found neither. Use"
            " ThreatModel(mechanism='known') or 'realised', or an unaware attack."
        )

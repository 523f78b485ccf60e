"""The search of the adaptive attack: plan, descend, plan again, finish."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._evidence import (
    Channel,
    Denoised,
    Evidence,
    depends_on_inputs,
    energy_of,
    plan_channel,
)
from .._observation import Observation
from .._reconstruction import FINISHED, Reconstruction
from ._candidates import message_of, noise_start
from ._consensus import consensus
from ._optimise import SETTLED, Cost, Descent, Minimum, Watch, minimise
from ._refine import Refined
from ._smoothing import SmoothTwin
from ._splitting import split
from ._stages import Stages, refine_one

if TYPE_CHECKING:
    from .._adaptive import Adaptive

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

"""The attack that knows the defense: the likelihood of what was sent as the matching cost."""

import math
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor

from gradveil._checks import check_kind
from gradveil.denoising import Denoiser
from gradveil.theory import GaussianPrior

from ._attack import FINISHED, Progress, Reconstruction
from ._descent import SETTLED, Descent, Minimum, Point, consensus
from ._inverting_gradients import InvertingGradients, between
from ._matching import LOOSENESS, Channel, Evidence, depends_on_inputs, plan_channel
from ._observation import check_known
from ._plan_reader import PlanReader, plan_can_be_read
from ._priors import Denoised, Energy, TotalVariation, energy_of
from ._refine import Finish, Stages, refine_in_stages, split
from ._targets import LabelledSearch, Run


@dataclass(frozen=True)
class Adaptive(LabelledSearch):
    """Maximum a posteriori: minimises -log p(sent | g(x)) + E(x) under the known mechanism.

    -log p is ½ Σ_i dist(g_i, I_i)² / std_i² (`Evidence`): entries with noise are points, pruned
    ones intervals |g_i| ≤ τ_i, clipped ones rays, rounded ones cells. E is the prior's energy. A
    mechanism that is not public is planned again at the attacker's own estimate. Where it was
    planned from the private batch, its noise levels are evidence, too: `PlanReader` reads them, and
    its result counts if it is more likely.

    The intervals open gradually. The unaware attack's own result and starts from noise go through
    the same last stages, and the most likely one wins. Where even that one leaves a part of the
    message unexplained, the mean of the likely ones, images of equal labels matched first, is
    nearer to the truth. A descent goes on from there; if its end explains the message it is
    returned, else the point half way. The unaware result as it was is one of the likely ones where
    the plan was made at the attacker's estimate, for that may have led the others astray.

    Args:
        unaware: The attack whose result is the warm start; its steps and rate are used, too.
        prior: `None` is flat.
        restarts: How many starts from N(0, I) beside the warm one.
        finish: The second-order steps at the end.

    >>> attack = Adaptive(InvertingGradients(steps=20), prior=None, finish=None)
    >>> known = replace(seen, defense=NoDefense())
    >>> attack(known, torch.Generator().manual_seed(0)).inputs.shape
    torch.Size([1, 3])
    """

    knows_defense = True

    unaware: InvertingGradients = field(default_factory=InvertingGradients.strong)
    prior: TotalVariation | GaussianPrior | Denoiser | None = field(
        default_factory=lambda: TotalVariation(2.0)
    )
    _: KW_ONLY
    restarts: int = 3
    finish: Finish | None = field(default_factory=Finish)

    def __post_init__(self) -> None:
        super().__post_init__()
        energy_of(self.prior)
        check_kind(self.unaware, "unaware", InvertingGradients, "Use `InvertingGradients()`.")
        if self.finish is not None:
            check_kind(self.finish, "finish", Finish, "Use `Finish()`.")

    def search(self, run: Run) -> Reconstruction:
        seen = run.observation
        check_known(seen)
        defense = seen.defense and seen.defense.seen_in(seen.sent)
        seen = replace(seen, labels=run.labels, defense=defense)
        run = replace(run, observation=seen)
        progress = self.progress or self.unaware.progress
        unaware = replace(self.unaware, time_budget=run.watch.left(), progress=progress)
        warm = unaware(seen, run.generator)
        result = warm if warm.status != FINISHED else self._likeliest(run, warm)
        if result.status != FINISHED or not plan_can_be_read(seen):
            return result
        if run.misfit(result.inputs) < 0.5:  # noise has less than half of the message's power
            return result
        return PlanReader(time_budget=run.watch.left()).improve(run, result)

    def _likeliest(self, run: Run, warm: Reconstruction) -> Reconstruction:
        """Plan, search from noise, plan again, then bring all candidates to the end."""
        posterior = _Posterior.at(warm.inputs, self, run)
        if posterior.is_solved_by(warm):
            return warm
        searched = posterior.descend(run.noise(self.restarts), 1.0, 2.0, annealed=True)
        candidates = torch.cat([warm.inputs[None], searched.inputs])
        costs = posterior.costs(candidates)
        best = candidates[costs.argmin()]
        if searched.status != FINISHED:
            return replace(warm, inputs=best, loss=float(costs.min()), status=searched.status)
        if depends_on_inputs(run.observation):
            posterior = _Posterior.at(best, self, run)
        polished = posterior.descend(candidates, 0.25, 0.1)
        end = posterior.agreed(polished, posterior.finish(polished), warm.inputs)
        return Reconstruction(end.inputs, run.labels, end.cost, end.status)

    def configured(
        self,
        steps: int | None = None,
        time_budget: float | None = None,
        progress: Progress | None = None,
    ) -> "Adaptive":
        """The attack with other settings: the steps are those of the unaware one."""
        own = super().configured(None, time_budget, progress)
        return replace(own, unaware=self.unaware.configured(steps, progress=progress))


WRONG = 2 * LOOSENESS
"""A candidate that leaves more than this unexplained is not taken alone."""


@dataclass(frozen=True)
class _Posterior:
    """-log p(sent | g(x)) + E(x) of one observation, and the searches for its minimum."""

    attack: Adaptive
    run: Run
    channel: Channel
    energy: Energy

    @classmethod
    def at(cls, estimate: Tensor, attack: Adaptive, run: Run) -> "_Posterior":
        """With the known mechanism, or planned with the sensitivities at the estimate."""
        channel = plan_channel(run.observation, run.labels, estimate, run.generator)
        return cls(attack, run, channel, energy_of(attack.prior))

    def evidence(self, progress: float = 1.0) -> Evidence:
        """What the observation says at this stage: intervals open, the looseness falls."""
        seen = self.run.observation
        opening = min(1.0, max(0.0, 2 * progress - 0.25))
        size = seen.batch_size * math.prod(seen.input_shape)
        return self.channel.evidence(opening, between(10 * LOOSENESS, LOOSENESS, progress), size)

    @torch.no_grad()
    def values(self, inputs: Tensor) -> Tensor:
        """The message, not differentiated."""
        return self.run.message(inputs)

    def is_solved_by(self, result: Reconstruction) -> bool:
        """Whether nothing was hidden and the unaware attack has it all: a prior would only hurt."""
        channel = self.channel
        if bool((channel.low < channel.high).any() | channel.std.any() | channel.silent.any()):
            return False
        return result.is_certain or self.unexplained(result.inputs) < 1e-6

    def unexplained(self, inputs: Tensor) -> float:
        """The share of the signal's power by which the inputs miss the evidence."""
        return self.channel.unexplained(self.evidence(), self.values(inputs))

    def costs(self, candidates: Tensor) -> Tensor:
        evidence, energy = self.evidence(), self.energy
        found = [evidence.misfit(self.values(x)) + energy(x) for x in candidates]
        return torch.stack(found).detach()

    def descend(self, start: Tensor, share: float, rate: float, annealed: bool = False) -> Minimum:
        """With a share of the unaware attack's steps, at this multiple of its rate.

        Annealed, the rate stays high for longer: a likelihood has more narrow valleys than a
        cosine, and that steps over more of them.
        """
        run, unaware = replace(self.run, progress=self.attack.progress), self.attack.unaware
        message, energy, final = run.message, self.energy, self.evidence()

        def cost(inputs: Tensor, progress: float) -> Tensor:
            evidence = self.evidence(min(1.0, progress / SETTLED)) if annealed else final
            return evidence.misfit(message(inputs)) + energy(inputs)

        decay, settled = ("cosine", SETTLED) if annealed else ("steps", 0.0)
        steps, left = max(1, round(share * unaware.steps)), run.watch.left()
        descent = Descent(steps, rate * unaware.lr, "signed-adam", decay, left, settled)
        return run.minimise(cost, start, descent)

    def finish(self, polished: Minimum) -> Point:
        """Second-order steps from the candidates, the likeliest first, until one explains it."""
        best, finish = polished.best, self.attack.finish
        if finish is None or polished.status != FINISHED:
            return best
        evidence, energy, run = self.evidence(), self.energy, self.run
        if isinstance(energy, Denoised) and run.observation.task == "classification":
            energy = replace(energy, labels=run.labels)
        stages = Stages(run.observation, run.labels, evidence, energy, finish)
        if isinstance(energy, Denoised):
            return split(stages, energy, best.inputs, run.watch)

        def explains(inputs: Tensor) -> bool:
            return bool(evidence.misfit(self.values(inputs)) < 0.1 * energy(inputs))

        starts = polished.inputs[polished.costs.argsort()]
        return refine_in_stages(stages, starts, run.watch, explains, best) or best

    def agreed(self, polished: Minimum, end: Point, unaware: Tensor) -> Point:
        """The end if it explains the message or is far ahead; else a descent from a mean."""
        left = self.unexplained(end.inputs)
        if end.status != FINISHED or not left > WRONG:
            return end
        others = polished.inputs[polished.costs.argsort()[1:]]
        near = [x for x in others if self.unexplained(x) <= 1.25 * left]
        if depends_on_inputs(self.run.observation):
            near.append(unaware)
        if not near:
            return end
        mean = consensus(torch.stack([end.inputs, *near]), self.run.labels)[0]
        found = self.descend(mean[None], 0.5, 0.5)
        if not self.unexplained(found.inputs[0]) > WRONG:
            return found.best
        inputs = (found.inputs[0] + mean) / 2
        return Point(inputs, float(self.costs(inputs[None])), found.status)

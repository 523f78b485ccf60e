"""A defense that measures sensitivities only every few steps."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_count, check_kind, check_positive, check_ratio, check_structure
from gradveil._tensors import total
from gradveil._typing import Tensors
from gradveil.messages import Message
from gradveil.sensitivity import Auto, Moments, measure_with_values

from ._base import Defense
from ._micro_batches import Observer, observe_values
from ._planning import Wrapper

OWN_PART = 2.5
"""κ in units of Σ s̄² / Σ g². Over 200 training steps of the MNIST CNN on batches of 16, values of
1.5 / 3 / 5 kept 0.80 / 0.78 / 0.77 of the optimum in the mean, isotropic noise 0.64; the worst step
was 0.003 below / 0.009 above / 0.03 above isotropic noise. With κ = 0, 55 steps were below it."""


LARGEST = 1e30
"""Of κ: a gradient next to 0 must not overflow float32."""


class Cached(Wrapper):
    """Measures sensitivities every `refresh_every` calls, averages them, takes the values fresh.

    The first step measures its whole batch and uses that. Later refreshes measure a `share` of
    their examples where the examples of a message add up, and otherwise all of it. What was
    measured goes into the running mean s̄², in which older measurements count `decay` times less.
    A step that did not measure all of its batch uses s̄² with the values g of its own batch: |g_i|
    of one batch says little about the next, and a whole plan used again is worse than isotropic
    noise. What s̄ cannot know, the examples that dominate this very batch, follows |g_i|: their
    part is added as s² = s̄² + κ g², with κ = 2.5 Σ s̄² / Σ g². As κ grows the plan turns
    isotropic, so it falls back to that where the past says little. A `target_error` is met on the
    steps that measure everything; on the others it is an estimate.

    This is for private plans (plan="private"), which tell who was in the batch. `Public` and
    `Released` keep a plan that does not for `refresh_every` calls.

    Args:
        defense: Any defense that needs sensitivities.
        refresh_every: Calls from one measurement to the next.
        decay: The weight of the past at each refresh, in [0, 1].
        share: The share of a batch's examples that a refresh measures after the first, for a
            defense whose estimator is "auto"; 1 measures all of them.

    >>> from gradveil import OptimalNoise
    >>> Cached(OptimalNoise(scale=0.1, plan="private"), refresh_every=10)
    Cached(OptimalNoise(scale=0.1, ...), refresh_every=10, decay=0.9, share=0.25)
    """

    def __init__(
        self, defense: Defense, refresh_every: int = 10, decay: float = 0.9, share: float = 0.25
    ) -> None:
        check_kind(defense, "defense", Defense, "Use for example `OptimalNoise(scale=0.1)`.")
        check_count(refresh_every, "refresh_every")
        check_ratio(decay, "decay")
        check_ratio(share, "share")
        check_positive(share, "share")
        defense.check_plans("to cache")
        _check_private(defense)
        if defense.needs_curvature:
            raise ValueError(
                "Parameter `defense` should plan from values and sensitivities, which are kept from"
                f" step to step. Found {defense!r}, which needs the curvature, too. Use"
                " utility='variance'."
            )
        self.defense, self.refresh_every = defense, refresh_every
        self.decay, self.share = decay, share
        self.reset()

    def reset(self) -> None:
        """Forget everything, as for a new model."""
        self._step, self._count = 0, 0.0
        self._mean: Tensors = {}
        self._past_total: float | None = None
        self._is_loaded = False

    @property
    def label(self) -> str:
        """The wrapped defense's, after "cached"."""
        return f"cached {self.defense.label}"

    @property
    def plan_from(self) -> str:  # type: ignore[override]
        """As for the wrapped defense."""
        return self.defense.plan_from

    @property
    def plan_is_private(self) -> bool:
        """As for the wrapped defense."""
        return self.defense.plan_is_private

    @property
    def plan_varies(self) -> bool:
        """As for the wrapped defense."""
        return self.defense.plan_varies

    @property
    def prunes_by_sensitivity(self) -> bool:
        """As for the wrapped defense."""
        return self.defense.prunes_by_sensitivity

    def pruned_limits(self, sent: Tensor, pruned: Tensor, sensitivity: Tensor | None) -> Tensor:
        """As for the wrapped defense."""
        return self.defense.pruned_limits(sent, pruned, sensitivity)

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """Fresh values beside sensitivities that are measured now, or made up from the past."""
        step = self.observer()
        step.add(message, inputs, generator)
        return step.finish()

    def observer(self) -> "CachedObserver":
        """What puts the micro-batches of one step together: they are one call."""
        return CachedObserver(self)

    def state_dict(self) -> dict[str, Any]:
        """The state to continue from: the number of calls and the running mean s̄²."""
        return {
            "step": self._step,
            "count": self._count,
            "squared_sensitivities": dict(self._mean),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        expected = {"step", "count", "squared_sensitivities"}
        check_kind(state, "state", dict, "Use what `state_dict` returned.")
        if state.keys() != expected:
            raise ValueError(
                f"Parameter `state` should have the keys {sorted(expected)}. Found"
                f" {sorted(state)}. Use what `state_dict` returned."
            )
        self.reset()
        self._step, self._count = int(state["step"]), float(state["count"])
        self._mean, self._is_loaded = dict(state["squared_sensitivities"]), True

    def __repr__(self) -> str:
        return (
            f"Cached({self.defense!r}, refresh_every={self.refresh_every}, decay={self.decay},"
            f" share={self.share})"
        )

    @property
    def _is_due(self) -> bool:
        """Whether the next step measures."""
        return self._step % self.refresh_every == 0

    def _remember(self, values: Tensors, moments: Moments, *, measured_all: bool) -> Moments:
        """The moments to plan with; from now on, this step is a part of the past."""
        self._adjust(values)
        if self._is_due:
            self._join(moments)
        self._step += 1
        return moments if measured_all else self._completed(moments)

    def _part(self, message: Message, inputs: Tensor) -> Auto | None:
        """What measures a part of this batch; `None`: all of it is measured."""
        first, plain = not self._mean, self.defense.estimator == "auto"
        if first or not plain or not self.defense.needs_sensitivities:
            return None
        part = Auto(examples=max(2, math.ceil(self.share * len(inputs))))
        return part if part.cuts(message, inputs) else None

    def _join(self, fresh: Moments) -> None:
        """s̄² ← (decay · n s̄² + s²) / (decay · n + 1), over n measurements so far."""
        if fresh.squared_sensitivities is None:
            return
        past = self.decay * self._count
        self._count = past + 1
        self._mean = {
            name: (past * self._mean[name] + square) / self._count if past else square
            for name, square in fresh.squared_sensitivities.items()
        }
        self._past_total = None

    def _completed(self, moments: Moments) -> Moments:
        """The moments of this batch's values, with s̄² + κ g² for the sensitivities.

        0 where nothing was ever seen and the value is 0, too: the defense's floor hides that.
        """
        if not self._mean:
            return moments
        squares = moments.squared_values
        if self._past_total is None:
            self._past_total = float(total(self._mean.values()))
        fresh = float(total(squares.values()))
        level = min(self._past_total / fresh, LARGEST) if fresh > 0 else 0.0
        own = {n: p.add(squares[n], alpha=OWN_PART * level) for n, p in self._mean.items()}
        return replace(moments, squared_sensitivities=own)

    def _adjust(self, values: Tensors) -> None:
        """Require the mean to fit these values, and move one that was loaded to where they are."""
        if not self._mean:
            return
        try:
            check_structure(values, self._mean, "message(inputs)", "cached sensitivities")
        except ValueError as error:
            raise ValueError(f"{error} Or call `reset()`, for a new model.") from None
        if self._is_loaded:
            self._mean = {name: self._mean[name].to(value) for name, value in values.items()}
            self._is_loaded = False


def _check_private(defense: Defense) -> None:
    if defense.reads_moments and not defense.plan_is_private:
        raise ValueError(
            "Parameter `defense` should plan from the private batch, whose values a cached step"
            f" takes fresh. Found plan_from={defense.plan_from!r}. Use `Released(defense,"
            " refresh_every=10)` or `Public(defense, examples)`, which keep their plans by"
            " themselves, or plan='private', which reveals the batch."
        )


class CachedObserver(Observer):
    """Measures a step's micro-batches if the step is due, and completes them with the past."""

    def __init__(self, cached: Cached) -> None:
        super().__init__(cached)
        self._cached, self._measured_all = cached, cached._is_due

    def measure(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """Values of one micro-batch, with its sensitivities if they are due."""
        if not self._cached._is_due:
            return observe_values(message, inputs)
        part = self._cached._part(message, inputs)
        if part is None:
            return self._cached.defense.observe(message, inputs, generator)
        self._measured_all = False
        return measure_with_values(message, inputs, part, generator=generator)

    def finish(self) -> tuple[Tensors, Moments]:
        """The whole step, which the defense remembers from now on."""
        values, moments = super().finish()
        return values, self._cached._remember(values, moments, measured_all=self._measured_all)

"""Sensitivities measured only now and then: the price of a defense spread over steps."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_count, check_ratio, check_structure
from gradveil._typing import Tensors
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import Message
from gradveil.sensitivity import Moments

from ._base import Defense, observe_values


class Cached(Defense):
    """Measures sensitivities every `refresh_every` calls, averages them, takes the values fresh.

    Each refresh joins a running mean in which older ones count `decay` times less. The plan of
    every step uses that mean with the values g of the step's own batch: |g_i| of one batch says
    little about the next, and a whole plan used again is worse than isotropic noise.

    Args:
        defense: Any defense that needs sensitivities.
        refresh_every: Calls from one measurement to the next.
        decay: The weight of the past at each refresh, in [0, 1].

    >>> from gradveil import OptimalNoise
    >>> Cached(OptimalNoise(scale=0.1), refresh_every=10)
    Cached(OptimalNoise(scale=0.1, ...), refresh_every=10, decay=0.9)
    """

    def __init__(self, defense: Defense, refresh_every: int = 10, decay: float = 0.9) -> None:
        check_count(refresh_every, "refresh_every")
        check_ratio(decay, "decay")
        self.defense, self.refresh_every, self.decay = defense, refresh_every, decay
        self.reset()

    def reset(self) -> None:
        """Forget everything, as for a new model."""
        self._step = 0
        self._mean: Moments | None = None

    def plan(self, moments: Moments) -> AnyMechanism:
        """What the wrapped defense plans."""
        return self.defense.plan(moments)

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """Fresh values beside the running mean of the sensitivities."""
        if self._step % self.refresh_every == 0:
            values, fresh = self.defense.observe(message, inputs, generator)
            self._check_structure(values)
            self._mean = self._joined(fresh)
        else:
            values, fresh = observe_values(message, inputs)
            self._check_structure(values)
        assert self._mean is not None
        self._step += 1
        return values, replace(
            fresh, squared_sensitivities=self._mean.squared_sensitivities, variances=None
        )

    def state_dict(self) -> dict[str, Any]:
        """The state to continue from: the number of calls and the running mean."""
        mean = self._mean
        return {
            "step": self._step,
            "count": 0.0 if mean is None else mean.count,
            "squared_sensitivities": {} if mean is None else mean.squared_sensitivities or {},
            "squared_values": {} if mean is None else dict(mean.squared_values),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        expected = {"step", "count", "squared_sensitivities", "squared_values"}
        if state.keys() != expected:
            raise ValueError(
                f"Parameter `state` should have the keys {sorted(expected)}. Found"
                f" {sorted(state)}. Use what `state_dict` returned."
            )
        self._step = int(state["step"])
        self._mean = None
        if state["count"] > 0:
            self._mean = Moments(
                squared_values=dict(state["squared_values"]),
                squared_sensitivities=dict(state["squared_sensitivities"]) or None,
                input_size=1,
                count=float(state["count"]),
            )

    def __repr__(self) -> str:
        return f"Cached({self.defense!r}, refresh_every={self.refresh_every}, decay={self.decay})"

    def _joined(self, fresh: Moments) -> Moments:
        if self._mean is None or self.decay == 0:
            return fresh
        return self._mean.weighted(self.decay) + fresh

    def _check_structure(self, values: Tensors) -> None:
        if self._mean is None:
            return
        try:
            check_structure(
                values, self._mean.squared_values, "message(inputs)", "cached sensitivities"
            )
        except ValueError as error:
            raise ValueError(f"{error} Or call `reset()`, for a new model.") from None

"""Top-k sparsification that keeps what it did not send for the next step."""

from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_ratio, check_structure
from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism
from gradveil.messages import Message
from gradveil.sensitivity import Moments

from .._base import Defense
from .._defended import Defended
from .._gradient_pruning import GradientPruning
from .._micro_batches import checked_values
from ._state import remembered


class ErrorFeedback(Defense):
    """y_t = top_k(g_t + e_t), e_{t+1} = g_t + e_t - y_t, e_1 = 0 (Stich et al. 2018).

    All that is sent and held back adds up to all gradients: Σ_t y_t + e = Σ_t g_t.

    Guarantee: none. Entries are sent bare, which they are shows, and what is not sent now is sent
    later. An attacker who knows it knows the algorithm and not e_t. At the first step e is 0, and
    that is what it assumes; later the message is of several batches, and it is wrong by the rest.

    Args:
        ratio: The share of entries that is held back, as in `GradientPruning`.

    >>> ErrorFeedback(ratio=0.9)
    ErrorFeedback(ratio=0.9)
    """

    amount_name = "ratio"
    plan_from = "private"

    def __init__(self, ratio: float) -> None:
        check_ratio(ratio, "ratio")
        self.ratio = ratio
        self._held_back: Tensors = {}
        self._pruning = GradientPruning(ratio)

    @property
    def needs_sensitivities(self) -> bool:
        """Never."""
        return False

    @property
    def plan_varies(self) -> bool:
        """No: which entries were sent shows in the message."""
        return False

    def pruned_limits(self, sent: Tensor, pruned: Tensor, sensitivity: Tensor | None) -> Tensor:
        """The least entry that was sent is the threshold."""
        return self._pruning.pruned_limits(sent, pruned, sensitivity)

    def plan(self, moments: Moments) -> Mechanism:
        """The largest entries."""
        return self._pruning.plan(moments)

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """The message with what was held back so far."""
        values = checked_values(message, inputs)
        if self._held_back:
            check_structure(values, self._held_back, "message(inputs)", "what was held back")
            held = {name: self._held_back[name].to(value) for name, value in values.items()}
            values = {name: value + held[name] for name, value in values.items()}
        return values, Moments.of_values(values, inputs.numel())

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """One step; what is not sent stays here."""
        step = super().respond(message, inputs, generator)
        self._held_back = {n: (v - step.sent[n]).detach() for n, v in step.values.items()}
        return step

    def reset(self) -> None:
        """Hold nothing back, as for a new model."""
        self._held_back = {}

    def state_dict(self) -> dict[str, Any]:
        """What is held back; nothing before the first step."""
        return {"held_back": dict(self._held_back)} if self._held_back else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        self._held_back = dict(remembered(state, "held_back") or {})

    def __repr__(self) -> str:
        return f"ErrorFeedback(ratio={self.ratio})"

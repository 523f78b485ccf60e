"""The server's planner: one shape for all clients, every few rounds."""

from typing import Any

import torch
from torch import Tensor, nn

from gradveil._batches import check_pair
from gradveil._checks import (
    check_callable,
    check_count,
    check_inputs,
    check_kind,
    check_ratio,
    check_seed,
)
from gradveil._random import named_stream
from gradveil.messages import (
    LocalSteps,
    LossFunction,
    check_match,
    gradient_of,
    trainable_parameters,
)
from gradveil.plans import Shape, fit_shape, gather, trust_in

from ._packed import PackedShape
from ._small import small_shape


class Planner:
    """Plans the shape of all clients' noise from public examples, at the server's model.

    The shape is that of `fit_shape`: Theorem 2's r_i = √(E‖∇_x g_i‖² / E g_i²) for each tensor, row
    and column, as far as the public batches prove it better than isotropic noise; with less than
    two batches, or examples that a trained model does not know (`trust_in`), it is isotropic. It is
    the same for all clients, so its cost does not depend on how many there are; clients that plan
    with `FromServer` measure nothing. What it sends takes at most `share` of the model's bytes.

    Round t plans anew if t - 1 is a multiple of `refresh_every`, with probes from the stream (seed,
    "plan", t). So a planner's state is its last shape.

    Args:
        public: Inputs and targets that are no client's secret. They should be like the clients'.
        loss_fn: As clients use it.
        refresh_every: Rounds from one plan to the next.
        batch_size: Examples in a public batch: as many as clients have in theirs.
        local: FedAvg's local steps, as clients take them; `None` for FedSGD's gradient.
        share: Of the model's bytes, at most, that a shape may take.
        seed: The root of its random stream.
    """

    def __init__(
        self,
        public: tuple[Tensor, Tensor],
        loss_fn: LossFunction,
        refresh_every: int = 10,
        *,
        batch_size: int = 16,
        local: LocalSteps | None = None,
        share: float = 0.01,
        seed: int = 0,
    ) -> None:
        inputs, targets = check_pair(public, "public")
        tokens = gradient_of(inputs).takes_tokens
        check_inputs(inputs, "public inputs", tokens=tokens)
        check_match(inputs, targets, tokens=tokens)
        check_callable(loss_fn, "loss_fn", "Use for example cross_entropy.")
        check_count(refresh_every, "refresh_every")
        check_count(batch_size, "batch_size")
        check_ratio(share, "share")
        check_seed(seed)
        if local is not None:
            check_kind(local, "local", LocalSteps, "Use for example `LocalSteps(0.1, 2)`.")
        self.public, self.loss_fn, self.refresh_every = (inputs, targets), loss_fn, refresh_every
        self.batch_size, self.local, self.share, self.seed = batch_size, local, share, seed
        self._packed: PackedShape | None = None

    def plan(self, number: int, model: nn.Module) -> PackedShape:
        """The shape of round `number`, counted from 1, at this model."""
        check_count(number, "number")
        if self._packed is None or (number - 1) % self.refresh_every == 0:
            like = trainable_parameters(model)
            shape = self._fitted(named_stream(self.seed, "plan", number), model)
            size = sum(value.numel() * value.element_size() for value in like.values())
            self._packed = PackedShape.of(small_shape(shape, like, self.share * size))
        return self._packed

    def _fitted(self, generator: torch.Generator, model: nn.Module) -> Shape:
        """What the public batches prove, as far as the model shows that they are of its kind."""
        device = next(model.parameters()).device
        inputs, targets = (part.to(device) for part in self.public)
        make = gradient_of(inputs) if self.local is None else self.local.message
        whole = max(1, len(inputs) // self.batch_size)  # a last batch that is smaller is left out
        parts = [slice(i * self.batch_size, (i + 1) * self.batch_size) for i in range(whole)]
        evidence = [
            gather(make(model, self.loss_fn, targets[part]), inputs[part], generator)
            for part in parts
        ]
        trust = trust_in(make(model, self.loss_fn, targets), inputs, generator)
        return fit_shape(evidence, size=self.batch_size, trust=trust, entries=False)

    def state_dict(self) -> dict[str, Any]:
        """The state to continue from: the last shape, packed; nothing before the first."""
        packed = self._packed
        if packed is None:
            return {}
        return {"layout": packed.layout, "means": packed.means, "codes": packed.codes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        self._packed = PackedShape(**state) if state else None

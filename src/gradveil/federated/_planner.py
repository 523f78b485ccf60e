"""The server's plan: a shape made from public examples, packed and sent."""

import json
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._checks import (
    WrongValue,
    check_callable,
    check_count,
    check_inputs,
    check_kind,
    check_pair,
    check_seed,
)
from gradveil._random import named_stream
from gradveil.messages import LocalSteps, LossFunction, check_match, gradient_of
from gradveil.shapes import Shape, fit_shape, gather, trust_in


@dataclass(frozen=True, eq=False)
class PackedShape:
    """A shape as a server sends it; rounded, so that all who unpack it have the same.

    A number f of a factor with geometric mean c has the code 128 + 16 log₂(f/c), rounded and in
    [0, 255]: up to 256 times the mean, by at most 2.2 % off. A factor of one number is its mean,
    without a code.
    """

    layout: str
    """Names and the sizes of their factors, as JSON: [["weight", [8, 1], [1, 5]], ...]."""
    means: Tensor
    """c of each factor, float32."""
    codes: Tensor
    """Of all numbers, uint8."""

    def __post_init__(self) -> None:
        check_kind(self.layout, "layout", str, "Use `PackedShape.of(shape)`.")
        for name, kind in (("means", torch.float32), ("codes", torch.uint8)):
            part = getattr(self, name)
            if not isinstance(part, Tensor) or part.dtype is not kind or part.dim() != 1:
                found = str(part.dtype) if isinstance(part, Tensor) else type(part).__name__
                advice = "Use `PackedShape.of(shape)`."
                raise WrongValue(name, f"be one row of {kind}", found, advice)

    @classmethod
    def of(cls, shape: Shape) -> "PackedShape":
        """The shape with its levels rounded."""
        lines = [[name, *(list(f.shape) for f in parts)] for name, parts in shape.factors.items()]
        flat = [factor for parts in shape.factors.values() for factor in parts]
        logs = [factor.detach().double().cpu().log2().reshape(-1) for factor in flat]
        codes = [(128 + 16 * (log - log.mean())).round().clamp(0, 255).byte() for log in logs]
        row = [code for code in codes if len(code) > 1] or [torch.zeros(0, dtype=torch.uint8)]
        means = torch.stack([log.mean() for log in logs]).exp2().float()
        return cls(json.dumps(lines), means, torch.cat(row))

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return len(self.layout.encode()) + 4 * len(self.means) + len(self.codes)

    @cached_property
    def shape(self) -> Shape:
        """The shape, made once: so are the plans that it has. An error if the parts do not fit."""
        lines = _read(self.layout)
        sizes = [size for _, *parts in lines for size in parts]
        coded = [prod(size) if prod(size) > 1 else 0 for size in sizes]
        if (len(sizes), sum(coded)) != (len(self.means), len(self.codes)):
            expected = f"have {len(sizes)} means and {sum(coded)} codes, as its layout says"
            found = f"{len(self.means)} and {len(self.codes)}"
            raise WrongValue("A packed shape", expected, found)
        levels = ((self.codes.float() - 128) / 16).exp2().split(coded)
        factors = (
            mean * level.view(size) if len(level) else mean.reshape(size)
            for mean, level, size in zip(self.means, levels, sizes, strict=True)
        )
        return Shape({name: tuple(next(factors) for _ in parts) for name, *parts in lines})


def _read(text: str) -> list[Any]:
    """The layout, if it is one: a list of names, each once, with lists of sizes above 0."""
    try:
        layout = json.loads(text)
    except (ValueError, RecursionError):
        layout = None
    good = isinstance(layout, list) and all(map(_is_line, layout))
    if not good or len({line[0] for line in layout}) < len(layout):
        expected = 'read [["name", [rows, 1], [1, columns]], ...], each name once'
        raise WrongValue("The layout of a packed shape", expected, f"{text[:100]!r}")
    return list(layout)


def _is_line(line: object) -> bool:
    if not isinstance(line, list) or len(line) < 2 or not isinstance(line[0], str):
        return False
    if not all(isinstance(part, list) and len(part) < 16 for part in line[1:]):
        return False
    return all(type(number) is int and 0 < number < 2**31 for part in line[1:] for number in part)


class Planner:
    """Plans the shape of all clients' noise from public examples, at the server's model.

    The shape is that of `fit_shape`: Theorem 2's r_i = √(E‖∇_x g_i‖² / E g_i²) for each tensor, row
    and column, as far as the public batches prove it better than isotropic noise; with less than
    two batches, or examples that a trained model does not know (`trust_in`), it is isotropic. It is
    the same for all clients, which measure nothing. What it sends takes less than a hundredth of
    the bytes of a model with 100,000 parameters.

    Round t plans anew if t - 1 is a multiple of `refresh_every`, with probes from the stream (seed,
    "plan", t). So a planner's state is its last shape.

    Args:
        public: Inputs and targets that are no client's secret. They should be like the clients'.
        refresh_every: Rounds from one plan to the next.
        loss_fn, batch_size, local: As clients have them.
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
        seed: int = 0,
    ) -> None:
        inputs, targets = check_pair(public, "public")
        tokens = gradient_of(inputs).takes_tokens
        check_inputs(inputs, "public inputs", tokens=tokens)
        check_match(inputs, targets, tokens=tokens)
        check_callable(loss_fn, "loss_fn", "Use for example cross_entropy.")
        check_count(refresh_every, "refresh_every")
        check_count(batch_size, "batch_size")
        check_seed(seed)
        if local is not None:
            check_kind(local, "local", LocalSteps, "Use for example `LocalSteps(0.1, 2)`.")
        self.public, self.loss_fn, self.refresh_every = (inputs, targets), loss_fn, refresh_every
        self.batch_size, self.local, self.seed = batch_size, local, seed
        self._packed: PackedShape | None = None

    def plan(self, number: int, model: nn.Module) -> PackedShape:
        """The shape of round `number`, counted from 1, at this model."""
        check_count(number, "number")
        if self._packed is not None and (number - 1) % self.refresh_every:
            return self._packed
        generator, device = named_stream(self.seed, "plan", number), next(model.parameters()).device
        inputs, targets = (part.to(device) for part in self.public)
        make = gradient_of(inputs) if self.local is None else self.local.message
        whole = max(1, len(inputs) // self.batch_size)  # a last batch that is smaller is left out
        parts = [slice(i * self.batch_size, (i + 1) * self.batch_size) for i in range(whole)]
        evidence = [
            gather(make(model, self.loss_fn, targets[part]), inputs[part], generator)
            for part in parts
        ]
        trust = trust_in(make(model, self.loss_fn, targets), inputs, generator)
        shape = fit_shape(evidence, size=self.batch_size, trust=trust, entries=False)
        self._packed = PackedShape.of(shape)
        return self._packed

    def state_dict(self) -> dict[str, Any]:
        """The last shape, packed; nothing before the first."""
        names = () if self._packed is None else ("layout", "means", "codes")
        return {name: getattr(self._packed, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        self._packed = PackedShape(**state) if state else None

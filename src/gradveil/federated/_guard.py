"""What a client refuses: models that isolate single examples, requests beyond its limits."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import WrongType, WrongValue, check_count, check_ratio
from gradveil._random import named_stream, normal_like
from gradveil.catalog import Spec, build_defense
from gradveil.defenses import Defense
from gradveil.messages import (
    ConvUse,
    FunctionalLoss,
    GradientMessage,
    LayerUse,
    LinearUse,
    LocalUpdateMessage,
    Recorder,
    explained,
    settled,
)
from gradveil.shapes import synthetic


def parallel_rows(weight: Tensor) -> int:
    """The largest number of rows along one line, nearly; rows of zeros do not count.

    >>> import torch
    >>> parallel_rows(torch.tensor([[1.0, 2.0], [2.0, 4.0], [-3.0, -6.0], [1.0, 0.0]]))
    3
    """
    rows = weight.flatten(1)
    rows = rows[rows.norm(dim=1) > 0]
    if len(rows) < 2 or rows.shape[1] < 2:
        return 0
    rows = rows / rows.norm(dim=1, keepdim=True)
    return int(((rows @ rows.T).abs() > 0.9).sum(1).max())  # their cosines


def effective_share(signal: Tensor) -> float:
    """(Σ_n ‖δ_n‖)² / (N Σ_n ‖δ_n‖²): the share of the examples that the signal comes from.

    >>> import torch
    >>> effective_share(torch.tensor([[1.0], [1.0], [0.0], [0.0]]))
    0.5
    """
    sizes = signal.flatten(1).double().norm(dim=1)
    power = float(sizes.square().sum())
    return float(sizes.sum()) ** 2 / (len(sizes) * power) if power > 0 else 1.0


AnyMessage = GradientMessage | LocalUpdateMessage


class RefusedError(WrongValue):
    """A client does not do what its server asks for; nothing was sent."""


@dataclass(frozen=True)
class ModelGuard:
    """Looks at a server's model with made-up examples, and refuses it if it isolates single ones.

    Two signs, each of attacks by malicious servers that are known:

    - many rows of a linear layer, or kernels of the size of the image, that point the same way (an
      imprint layer, `Imprint`);
    - a signal that comes from a small part of the examples only (fishing for a class, `Fishing`;
      units that fire rarely, "trap weights").

    The examples are made up, so that a refusal tells nothing of the client's data. It finds what
    it looks for and proves nothing: rows that sort examples in eight directions instead of one pass
    it, and so do weights that are used outside of layers, as in ``x @ w``. What protects against
    every server is clipping (`PrivateNoise`).
    """

    examples: int = 64
    """How many are made up."""
    most_parallel: int = 8
    """Rows of one layer that may point the same way, beyond as many as random rows do."""
    least_effective: float = 0.25
    """The least `effective_share`; fishing for one of C classes makes it 1/C."""

    def __post_init__(self) -> None:
        check_count(self.examples, "examples")
        check_count(self.most_parallel, "most_parallel")
        check_ratio(self.least_effective, "least_effective")

    def check(self, message: AnyMessage, inputs: Tensor) -> None:
        """Refuse a model with one of the signs; of the batch only shapes are read."""
        for sign in self.signs(message, inputs):
            advice = "Nothing was sent; ask who made the model, or raise `ModelGuard`'s limits."
            raise RefusedError("The server's model", "not isolate single examples", sign, advice)

    def signs(self, message: AnyMessage, inputs: Tensor) -> Iterator[str]:
        """What is suspicious about the model, in words; nothing if it is not."""
        generator = named_stream("guard")
        own, made = synthetic(message, inputs, generator, self.examples)
        brighter = normal_like(made.flatten(1)[:, 0], generator)  # noise alone has the mean 0
        made = made + brighter.view(-1, *[1] * (made.dim() - 1))
        with explained(own, made):
            uses = _signals(message.loss, own.targets, made)
        for use in uses[:-1]:  # the last layer tells classes apart: that is its task
            weight = message.parameters[use.weight].detach()
            chance = normal_like(weight, generator)
            if _meets_once(use):
                rows = parallel_rows(weight)
                if rows > self.most_parallel + parallel_rows(chance):
                    yield f"{rows} of {len(weight)} rows of `{use.weight}` that point the same way"
            effective = effective_share(use.signal)
            if effective < self.least_effective:
                yield (
                    f"that `{use.weight}` learns from {effective:.0%} of made-up examples only,"
                    " whose classes are all equally frequent"
                )


def _meets_once(use: LayerUse) -> bool:
    """Whether each row meets a whole example: linear layers, kernels as large as the image."""
    if isinstance(use, LinearUse):
        return use.h[0].numel() == use.h.shape[-1]
    return isinstance(use, ConvUse) and use.h[0].numel() == use.h.shape[1]


def _signals(loss: FunctionalLoss, targets: Any, inputs: Tensor) -> list[LayerUse]:
    """The layers in the order of their use, each with δ = ∂L/∂h of each example."""
    own = {name: p.detach().requires_grad_() for name, p in loss.parameters.items()}
    x = inputs.detach().requires_grad_()
    recorder, value = settled(
        lambda opaque, copies: Recorder(own, opaque, copies, len(inputs)),
        lambda: loss(own, x.view_as(x), targets),
    )
    uses = [use for use in recorder.uses if use.h.requires_grad]
    if not uses:  # no layer is known
        return []
    signals = torch.autograd.grad(
        value, [use.h for use in uses], allow_unused=True, materialize_grads=True
    )
    for use, signal in zip(uses, signals, strict=True):
        use.signal = signal
    return uses


@dataclass(frozen=True)
class Limits:
    """Bounds, set in the client's own code, on what a server's round configuration may ask for.

    Without a bound the server has no say in a setting. A request outside of the bounds is an error
    on the client: nothing is sent.

    Args:
        defenses: Specifications. A server may ask for one of them, or for the same with a larger
            `scale`, `ratio`, `step`, `target_error` or `noise_multiplier`; all other options must
            agree.
        batch_size: The least and the most examples in a message. A shorter rest of an epoch is left
            out, whoever chose the size. A server that chooses it can still compare messages that
            differ by an example; against that there is only noise. Where Poisson sampling has no
            rate of its own, the rate is that of the size asked for: account for the largest.
        local_steps, local_lr: The least and the most of FedAvg's local steps, and of their rate.

    >>> limits = Limits(["optimal-noise(scale=0.01)"])
    >>> limits.defense("optimal-noise(scale=0.05)").scale
    0.05
    """

    defenses: tuple[str, ...] = ()
    _: KW_ONLY
    batch_size: tuple[int, int] | None = None
    local_steps: tuple[int, int] | None = None
    local_lr: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.defenses, str):
            found, advice = f"one text, {self.defenses!r}", "Put it into a list."
            raise WrongType("defenses", "be a list of specifications", found, advice)
        object.__setattr__(self, "defenses", tuple(self.defenses))
        for text in self.defenses:
            self._built(text)  # a mistake is an error now
        for name in ("batch_size", "local_steps", "local_lr"):
            _check_range(getattr(self, name), name)

    @property
    def least_examples(self) -> int:
        """In a message, whatever is left of an epoch."""
        return 1 if self.batch_size is None else math.ceil(self.batch_size[0])

    def defense(self, asked: str) -> Defense:
        """The defense that a server asked for, if it is within these limits."""
        try:
            spec = Spec.parse(asked, "defense")
            known = [Spec.parse(text, "defense") for text in self.defenses]
            allowed = any(_protects_as(spec, least) for least in known)
        except (ValueError, TypeError):
            allowed = False
        if not allowed:
            limits = f"within this client's limits, {[*self.defenses]} or more of it"
            raise _refused(f"ask for a defense {limits}", f"{str(asked)[:200]!r}")
        return self._built(asked)

    def _built(self, text: str) -> Defense:
        """Import paths in the client's own list are allowed: its code names them."""
        own = [path for each in self.defenses for path in Spec.parse(each, "defense").imports]
        return build_defense(text, allow_imports=own)

    def settings(self, config: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """The client's own settings, with what a round's configuration asks for in their place.

        Of the client: "defense", "batch_size", "local". Of the server: "defense", "batch-size",
        "local-steps", "local-lr"; "seed" and the parts of a defense are never its to choose.
        """
        for key in OWN & config.keys():
            raise _refused(f"leave `{key}` to the client", "it in the round's configuration")
        asked: dict[str, Any] = {}
        if "defense" in config:
            asked["defense"] = self.defense(config["defense"])
        asked |= _within(config, "batch-size", "batch_size", self.batch_size, int)
        local = _within(config, "local-steps", "steps", self.local_steps, int)
        local |= _within(config, "local-lr", "lr", self.local_lr, float)
        if local and own["local"] is None:
            found = f"{sorted(local)} of local steps in the round's configuration"
            raise _refused("ask clients of FedSGD for gradients only", found)
        if local:
            asked["local"] = replace(own["local"], **local)
        return {**own, **asked}


def _refused(expected: str, found: str) -> RefusedError:
    return RefusedError("A server", expected, found, "Nothing was sent.")


OWN = {"seed", "scale", "ratio", "clip", "noise", "local-batch-size", "local-momentum"}
"""Never a server's to choose: who knows the seed can take the noise off."""

AMOUNTS = ("scale", "ratio", "step", "target_error", "noise_multiplier")
"""Options of a defense of which more protects more."""


def _protects_as(asked: Spec, least: Spec) -> bool:
    """Whether one specification is another, with amounts that are at least as large."""
    if asked.name != least.name or asked.arguments.keys() != least.arguments.keys():
        return False
    return all(_enough(key, asked.arguments[key], value) for key, value in least.arguments.items())


def _enough(key: str, asked: Any, least: Any) -> bool:
    if isinstance(asked, Spec) and isinstance(least, Spec):
        return _protects_as(asked, least)
    if key in AMOUNTS and _is_number(asked) and _is_number(least):
        return math.isfinite(asked) and bool(asked >= least)
    return type(asked) is type(least) and bool(asked == least)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _within(
    config: Mapping[str, Any], name: str, own: str, limits: tuple[Any, Any] | None, kind: type
) -> dict[str, Any]:
    """What is asked for under a name, by the client's own word for it; nothing if nothing is."""
    if name not in config:
        return {}
    asked = config[name]
    fits = _is_number(asked) and (kind is float or isinstance(asked, int))
    if limits is None or not fits or not limits[0] <= asked <= limits[1]:
        bounds = "leave" if limits is None else f"ask for {limits[0]} to {limits[1]} as"
        found = f"`{name} = {str(asked)[:200]!r}`"
        raise _refused(f"{bounds} `{name}`, within this client's limits", found)
    return {own: kind(asked)}


def _check_range(limits: Any, name: str) -> None:
    if limits is None:
        return
    pair = isinstance(limits, (tuple, list)) and len(limits) == 2
    if not pair or not all(map(_is_number, limits)) or not 0 < limits[0] <= limits[1] < math.inf:
        expected = "be (least, most), two numbers above 0 in order"
        raise WrongValue(name, expected, repr(limits), assigned=True)

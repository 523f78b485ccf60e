"""Clipped sums by loops over examples, and models beside those of the zoo."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradveil.shapes import Shape
from tests.zoo import SEPARABLE, Case, MeanToken, named, token_labels

Tensors = dict[str, Tensor]


class Embedded(nn.Module):
    """Token ids that arrive as floating point numbers; one id is padding."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 5, padding_idx=padding)
        self.head = nn.Linear(5, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(ids.long())).mean(1))


class SequenceFirst(nn.Module):
    """Layers whose first axis is time; with as many steps as examples nothing but values tells."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        steps = torch.tanh(self.first(tokens.transpose(0, 1)))
        return self.second(steps.cumsum(0))[-1]


class ReadsOneStep(SequenceFirst):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(tokens.transpose(0, 1))))[0]


class OtherOrder(nn.Module):
    """A layer that takes the examples in another order, beside one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(inputs.roll(2, 0))).roll(-2, 0))


def ids(shape: tuple[int, ...], **options: object) -> Tensor:
    return torch.randint(4, shape, generator=options["generator"]).double()  # type: ignore[call-overload]


def conv2d(inputs: int, outputs: int, size: int, **options: int) -> Callable[[], nn.Module]:
    """A convolution of images of 6×6 with a head, of whatever size it leaves."""

    def build() -> nn.Module:
        layer = nn.Conv2d(inputs, outputs, size, **options)
        left = layer(torch.zeros(1, inputs, 6, 6)).numel()
        return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(left, 3))

    return build


def deep_conv(dim: int, **options: int) -> nn.Module:
    """Many channels and few positions: there products of positions are smaller than weights."""
    kind, pool = (
        (nn.Conv1d, nn.AdaptiveAvgPool1d) if dim == 1 else (nn.Conv2d, nn.AdaptiveAvgPool2d)
    )
    return nn.Sequential(
        kind(2, 12, 3, padding=1),
        nn.Tanh(),
        kind(12, 24, 3, stride=2, **options),
        nn.Tanh(),
        pool(1),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def sequence_mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), MeanToken(), nn.Linear(width, 3)
    )


IMAGES = (3, 2, 6, 6)
LAYERS = (
    Case("conv stride", conv2d(2, 4, 3, stride=2), IMAGES),
    Case("conv padding", conv2d(2, 4, 3, padding=2), IMAGES),
    Case("conv dilation", conv2d(2, 4, 2, dilation=2, padding=1), IMAGES),
    Case("conv groups", conv2d(2, 4, 3, groups=2), IMAGES),
    Case("conv depthwise", conv2d(2, 2, 3, groups=2, bias=False), IMAGES),  # type: ignore[arg-type]
    Case("conv same", conv2d(2, 4, 3, padding="same"), IMAGES),  # type: ignore[arg-type]
    Case("conv gram", partial(deep_conv, 2), IMAGES),
    Case("conv gram dilation", partial(deep_conv, 2, dilation=2, padding=2), IMAGES),
    Case("conv gram groups", partial(deep_conv, 2, groups=2), IMAGES),
    Case("conv1d gram", partial(deep_conv, 1, padding=1), (3, 2, 8)),
    Case("conv1d", lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Flatten(),
                                         nn.Linear(24, 3)), (3, 2, 8)),
    Case("conv3d", lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Flatten(), nn.Linear(16, 3)),
         (3, 1, 3, 3, 3)),
    Case("linear on sequences, gram", partial(sequence_mlp, 9), (3, 3, 4)),
    Case("linear on sequences, products", partial(sequence_mlp, 3), (3, 7, 4)),
    Case("linear on grids", lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(),
                                                  nn.Linear(18, 3)), (3, 2, 3, 4)),
    Case("embedding", Embedded, (3, 6), inputs_of=ids),
    Case("embedding with padding", partial(Embedded, -3), (3, 6), inputs_of=ids),
    Case("sequence first", SequenceFirst, (4, 6, 4)),
    Case("sequence first, as many steps", SequenceFirst, (4, 4, 4)),
    Case("sequence first, two steps", SequenceFirst, (2, 2, 4)),
    Case("sequence first, one step read", ReadsOneStep, (2, 2, 4)),
    Case("another order of examples", OtherOrder, (5, 4)),
    Case("tokens", lambda: named("tagger").build(), (3, 3, 4), F.cross_entropy, token_labels),
)  # fmt: skip

WARNS = ("weight_norm",)
"""vmap has no rule of its own for it, and says so."""

WEIGHTED = ("weighted", "weighted_partial")
"""A mean with class weights is no mean over examples."""

CLIPPABLE = (*[case for case in SEPARABLE if case.name not in (*WARNS, *WEIGHTED)], *LAYERS)


def own_gradients(case: Case, dtype: torch.dtype = torch.float64) -> list[Tensors]:
    """The gradient of each example's own loss, by plain autograd, one example after the other."""
    model, inputs = case.model(dtype), case.inputs(dtype)
    targets, loss_fn = case.targets(dtype), case.loss(dtype)
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found = []
    for b in range(len(inputs)):
        label = None if targets is None else targets[b : b + 1]
        loss = loss_fn(model(inputs[b : b + 1]), label)
        gradients = torch.autograd.grad(
            loss, list(parameters.values()), allow_unused=True, materialize_grads=True
        )
        found.append(dict(zip(parameters, gradients, strict=True)))
    return found


def norm(gradient: Mapping[str, Tensor], levels: Mapping[str, Tensor] | None = None) -> float:
    """‖Σ^{-1/2} g‖ with Σ = r / mean(r), entry by entry in float64."""
    g = torch.cat([value.double().reshape(-1) for value in gradient.values()])
    if levels is None:
        return float(g.norm())
    r = torch.cat([levels[name].double().reshape(-1) for name in gradient])
    return float((g / (r / r.mean()).sqrt()).norm())


def clipped_mean(
    gradients: list[Tensors], clip: float, size: int, levels: Mapping[str, Tensor] | None = None
) -> Tensors:
    """(1/B) Σ_b g_b min(1, C / ‖g_b‖_Σ)."""
    total = {name: torch.zeros_like(value) for name, value in gradients[0].items()}
    for g in gradients:
        length = norm(g, levels)
        for name, value in g.items():
            total[name] += value * (min(1.0, clip / length) if length > 0 else 1.0)
    return {name: value / size for name, value in total.items()}


def between(norms: list[float]) -> float:
    """A clip that some examples exceed, and others do not."""
    ordered = sorted(norms)
    return 0.5 * (ordered[0] + ordered[-1]) if len(ordered) > 1 else 0.7 * ordered[0]


def shapes(like: Mapping[str, Tensor]) -> dict[str, Shape]:
    """Every kind of factors, with levels over two orders of magnitude."""
    generator = torch.Generator().manual_seed(7)

    def levels(*size: int) -> Tensor:
        return 10 ** (2 * torch.rand(size, generator=generator, dtype=torch.float64))

    def factored(value: Tensor) -> tuple[Tensor, ...]:
        if value.dim() < 2:
            return (levels(*value.shape),)
        return levels(len(value), *[1] * (value.dim() - 1)), levels(1, *value.shape[1:])

    def mixed(value: Tensor) -> tuple[Tensor, ...]:
        return (*factored(value), levels(), levels(*value.shape))

    return {
        "layers": Shape({n: (levels(*[1] * v.dim()),) for n, v in like.items()}),
        "rows": Shape({n: factored(v)[:1] for n, v in like.items()}),
        "rows and columns": Shape({n: factored(v) for n, v in like.items()}),
        "last axis": Shape({n: (levels(*v.shape[-1:]),) for n, v in like.items()}),
        "entries": Shape({n: (levels(*v.shape),) for n, v in like.items()}),
        "all at once": Shape({n: mixed(v) for n, v in like.items()}),
        "nothing": Shape(dict.fromkeys(like, ())),
    }

"""Clipped sums against loops over examples, for every layer and every kind of shape."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, NonFiniteError
from gradveil.messages import ClippedMessage, Metric, _clipped
from tests.messages.compare import assert_same
from tests.zoo import Case, dropout_net, named

from .oracle import CLIPPABLE, LAYERS, between, clipped_mean, norm, own_gradients, shapes

each_case = pytest.mark.parametrize("case", CLIPPABLE, ids=lambda case: case.name)
SHAPED = ("mlp", "conv_net", "attention", "group_norm", "scalar", "tied", "unused", "frozen")
SHAPED_CASES = [*map(named, SHAPED), *LAYERS]


@each_case
def test_values_equal_the_loop_over_examples(case: Case):
    gradients = own_gradients(case)
    clip = between([norm(g) for g in gradients])
    message = ClippedMessage(case.message(), clip, batch_size=7)
    assert_same(message.values(case.inputs()), clipped_mean(gradients, clip, 7))


@pytest.mark.parametrize("kind", shapes({}))
@pytest.mark.parametrize("case", SHAPED_CASES, ids=lambda case: case.name)
def test_norms_are_those_of_the_shape(case: Case, kind: str):
    gradients = own_gradients(case)
    shape = shapes(gradients[0])[kind]
    levels = shape.levels(gradients[0])
    clip = between([norm(g, levels) for g in gradients])
    message = ClippedMessage(case.message(), clip, shape.factors, batch_size=3)
    assert_same(message.values(case.inputs()), clipped_mean(gradients, clip, 3, levels))


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_for_a_grid_they_are_added_up_in_float64_and_clipped_to_less(case: Case, dtype):
    """Layers of all kinds, and parameters outside of known ones."""
    gradients = own_gradients(case)
    clip = between([norm(g) for g in gradients])
    limit = Metric(None, gradients[0], grid=200.0).limit(clip)
    assert limit < 0.9997 * clip
    inputs = case.inputs().to(dtype) if case.inputs().is_floating_point() else case.inputs()
    found = ClippedMessage(case.message(dtype), clip, batch_size=7, grid=200.0).values(inputs)
    tolerance = 1e-3 if dtype == torch.float32 else None
    noise = 1e-5 if dtype == torch.float32 else None
    assert_same(found, clipped_mean(gradients, limit, 7), tolerance, noise)


@each_case
def test_as_a_function_of_the_inputs_it_has_the_same_values(case: Case):
    gradients = own_gradients(case)
    clip = between([norm(g) for g in gradients])
    assert_same(
        ClippedMessage(case.message(), clip)(case.inputs()),
        clipped_mean(gradients, clip, len(gradients)),
    )


@each_case
def test_without_clipping_it_is_the_sum_over_examples(case: Case):
    """A mean of losses is divided by the number of examples, a sum is not: here B says it."""
    message = case.message()
    plain, size = message.values(case.inputs()), len(case.inputs())
    is_sum = message.reduction == "sum" or case.name == "lambda_loss"
    values = ClippedMessage(message, 1e9, batch_size=1 if is_sum else size).values(case.inputs())
    total = sum(float(v.abs().sum()) for v in plain.values())
    ratio = sum(float((values[n] * v).sum()) for n, v in plain.items()) / sum(
        float(v.square().sum()) for v in plain.values()
    )
    assert total > 0
    assert_same(values, {n: ratio * v for n, v in plain.items()})
    assert ratio == pytest.approx(1.0) or ratio == pytest.approx(size)


@pytest.mark.parametrize("case", [named("mlp"), *LAYERS], ids=lambda case: case.name)
def test_a_small_room_gives_the_same(case: Case, monkeypatch: pytest.MonkeyPatch):
    """Some examples at a time, and nothing kept."""
    shape = shapes(case.message().parameters)["entries"]
    message = ClippedMessage(case.message(), 0.5, shape.factors)
    expected = message.values(case.inputs())
    for module in (_clipped._norms, _clipped._isolated):
        monkeypatch.setattr(module, "ROOM", 1)
    assert_same(message.values(case.inputs()), expected)


def test_an_empty_batch_gives_nothing():
    case = named("conv_net")
    empty = ClippedMessage(case.message(), 1.0, batch_size=4).values(case.inputs()[:0])
    assert {n: v.shape for n, v in empty.items()} == {
        n: p.shape for n, p in case.message().parameters.items()
    }
    assert not any(bool(v.any()) for v in empty.values())


def test_dropout_is_allowed_where_it_draws_the_same_for_norm_and_sum():
    """Three units of every example are cut; the sum has the length of the clip."""
    torch.manual_seed(0)
    model = dropout_net()
    inputs = torch.randn(1, 5)
    message = GradientMessage(model, cross_entropy, torch.tensor([1]))
    values = ClippedMessage(message, 1e-3, seed=1).values(inputs)
    assert norm(values) == pytest.approx(1e-3, rel=1e-4)
    assert 0 < int((values["3.weight"] == 0).all(0).sum()) < 8


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_in_float32_no_example_is_above_the_clip(case: Case):
    """One example at a time, its clipped gradient measured in float64."""
    shape = shapes(case.message().parameters)["rows and columns"]
    levels = shape.levels(case.message().parameters)
    for b, gradient in enumerate(own_gradients(case)):
        clip = 0.3 * norm(gradient, levels)
        message = case.message(torch.float32)
        message.targets = message.targets[b : b + 1]
        values = ClippedMessage(message, clip, shape.factors).values(
            case.inputs(torch.float32)[b : b + 1]
        )
        assert clip * (1 - 1e-4) < norm(values, levels) <= clip * (1 + 1e-6)


def test_cancelling_positions_do_not_hide_a_norm():
    """Σ_p δ_p a_pᵀ is 1e-5 of its terms: the rounding of their products is as large as the norm."""
    a = torch.full((1, 4, 64), 100.0)
    a[:, ::2] *= -1
    a[0, 0, 0] += 0.01
    model = nn.Linear(64, 64, bias=False)
    message = GradientMessage(model, lambda o, _: 100 * o.sum(), None)
    gradient = {"weight": 100.0 * torch.ones(64, 1).double() @ a[0].double().sum(0).view(1, -1)}
    assert 0 < norm(gradient) < 1e-5 * 4 * 64 * 100 * 100
    clip = 0.1 * norm(gradient)
    assert norm(ClippedMessage(message, clip).values(a)) <= clip * (1 + 1e-6)


def test_zero_gradients_add_nothing_and_are_no_error():
    model = nn.Linear(3, 2)
    message = GradientMessage(model, lambda o, _: 0 * o.sum(), None)
    for values in (ClippedMessage(message, 1.0).values(torch.ones(2, 3)),
                   ClippedMessage(message, 1.0)(torch.ones(2, 3))):  # fmt: skip
        assert not any(bool(v.any()) for v in values.values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_broken_example_is_an_error(bad: float):
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """The root of 0 is 0, its derivative infinite, and NaN times 0."""
            zero = (x[:, :1] - x[:, :1]) * self.layer(x)
            return (zero if bad != bad else zero + self.layer.bias * 0).sqrt() + self.layer(x)

    message = GradientMessage(Root(), cross_entropy, torch.tensor([0, 1]))
    with pytest.raises(NonFiniteError, match=r"2 of 2 examples.*Nothing was sent"):
        ClippedMessage(message, 1.0).values(torch.ones(2, 2))


def test_huge_gradients_whose_squares_overflow_are_clipped():
    message = GradientMessage(nn.Linear(2, 1), lambda o, _: 1e30 * o.sum(), None)
    values = ClippedMessage(message, 1.0).values(torch.ones(1, 2))
    assert norm(values) == pytest.approx(1.0, rel=1e-4)


class Sums(nn.Module):
    """A bias alone, with a gradient of each example by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.bias


def far_apart(model: nn.Module) -> dict[str, tuple[torch.Tensor, ...]]:
    """Levels of rows that differ by 1e16."""
    return {
        name: (torch.logspace(-8, 8, len(p)).view(-1, *[1] * (p.dim() - 1)),)
        for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize(
    ("model", "size"),
    [
        (nn.Linear(4, 3, bias=False), (4,)),
        (nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Flatten(1)), (2, 4)),
        (nn.Sequential(nn.Conv1d(4, 2, 2), nn.Flatten(1)), (4, 3)),
        (Sums(), (4,)),
    ],
)
def test_signals_whose_squares_vanish_are_clipped(
    model: nn.Module, size: tuple[int, ...], shaped: bool
):
    """In float32 the square of 1e-24 is 0; times inputs of 1e16 the gradient is above the clip."""
    inputs = 1e16 * torch.ones(1, *size)
    message = GradientMessage(model, lambda o, _: 1e-24 * o.sum(), None)
    factors = far_apart(model) if shaped else None
    values = ClippedMessage(message, 1e-9, factors).values(inputs)
    levels = None
    if factors is not None:
        levels = {n: factors[n][0].double().expand(v.shape) for n, v in values.items()}
    assert 0.99e-9 < norm(values, levels) <= 1e-9 * (1 + 1e-6)


def test_sigma_has_a_mean_of_1():
    like = {"w": torch.zeros(3, 2).double(), "b": torch.zeros(5).double()}
    for shape in shapes(like).values():
        metric = Metric(shape.factors, like)
        variances = torch.cat([metric.deviations(n).square().reshape(-1) for n in like])
        assert float(variances.mean()) == pytest.approx(1.0)


def test_the_global_generator_stays(global_rng_watch):
    case = named("attention")
    ClippedMessage(case.message(), 0.1).values(case.inputs())
    message = GradientMessage(dropout_net_of_its_own(), cross_entropy, torch.tensor([1, 0]))
    ClippedMessage(message, 0.1).values(torch.ones(2, 5))


def dropout_net_of_its_own() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return dropout_net()

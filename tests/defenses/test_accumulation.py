"""One noise for each optimizer step, however many micro-batches it has."""

import functools
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gradveil import (
    ClampedNoise,
    Defense,
    GradientMessage,
    GradientNoise,
    GradientPruning,
    Moments,
    NoDefense,
    NonFiniteError,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    PrivateNoise,
    Rounding,
    measure,
)
from gradveil.defenses import Soteria
from gradveil.defenses._accumulation import _added, _mix_squares
from gradveil.sensitivity import Exact

SIZES = (5, 3, 7, 1)
EXACT = Exact()
DEFENSES: dict[str, Callable[[], Defense]] = {
    "none": NoDefense,
    "noise": lambda: GradientNoise(0.1),
    "optimal noise": lambda: OptimalNoise(0.1, estimator=EXACT, source="private"),
    "budget": lambda: OptimalNoise(utility_budget=1e-3, estimator=EXACT, source="private"),
    "target": lambda: OptimalNoise(target_error=0.5, estimator=EXACT, source="private"),
    "layers": lambda: OptimalNoise(0.1, granularity="layer", estimator=EXACT, source="private"),
    "clamped-noise": lambda: ClampedNoise(0.1, clip=0.02),
    "optimal clamped-noise": lambda: OptimalClampedNoise(
        0.1, clip=0.02, estimator=EXACT, source="private"
    ),
    "pruning": lambda: GradientPruning(0.5),
    "optimal pruning": lambda: OptimalPruning(0.5, estimator=EXACT, source="private"),
    "noisy pruning": lambda: OptimalPruning(
        0.5, noise=OptimalNoise(0.1), estimator=EXACT, source="private"
    ),
    "rounding": lambda: Rounding(0.01),
    "optimal rounding": lambda: OptimalRounding(0.01, estimator=EXACT, source="private"),
}
pytestmark = pytest.mark.usefixtures("global_rng_watch")


def net(width: int = 6, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)).to(dtype)


def batch(count: int = sum(SIZES), seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (count,), generator=generator)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def accumulated(
    defense: Defense,
    model: nn.Module,
    loss: Any = cross_entropy,
    sizes: tuple[int, ...] = SIZES,
    seed: int = 0,
    **options: Any,
) -> dict[str, Tensor]:
    inputs, targets = batch(sum(sizes), seed)
    inputs = inputs.to(next(model.parameters()).dtype)
    with defense.accumulate(model, loss, generator(seed), **options) as step:
        for x, y in zip(inputs.split(sizes), targets.split(sizes), strict=True):
            step.add(x, y)
    assert step.sent is not None
    assert step.examples == sum(sizes)
    return step.sent


def plain(model: nn.Module, loss: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    return GradientMessage(model, loss, targets).values(inputs)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], rtol: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=rtol, atol=rtol * 1e-3)


def planned(defense: Defense, act: Callable[[], object]) -> list[Any]:
    """The mechanisms that a defense plans in the meantime."""
    found = []
    kind = type(defense)
    with pytest.MonkeyPatch.context() as patch:
        original = kind.mechanism

        def spied(self: Any, shape: Any, moments: Any) -> Any:
            mechanism = original(self, shape, moments)
            found.append(mechanism)
            return mechanism

        patch.setattr(kind, "mechanism", spied)
        act()
    return found


def levels(mechanism: Any) -> dict[str, Tensor]:
    return {
        f"{field}/{name}": tensor
        for field in ("std", "keep", "step")
        if isinstance(getattr(mechanism, field, None), dict)
        for name, tensor in getattr(mechanism, field).items()
    }


@pytest.mark.parametrize(
    "loss",
    [
        cross_entropy,
        functools.partial(cross_entropy, reduction="sum"),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda outputs, targets: cross_entropy(outputs, targets),
        lambda outputs, targets: 3 * cross_entropy(outputs, targets, reduction="sum"),
    ],
    ids=["mean", "sum", "module", "unknown mean", "unknown sum"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_defense_it_is_the_gradient_of_the_large_batch(
    loss: Any, dtype: torch.dtype
) -> None:
    model, (inputs, targets) = net(dtype=dtype), batch()
    accumulated(NoDefense(), model, loss)
    expected = plain(model, loss, inputs.to(dtype), targets)
    for name, parameter in model.named_parameters():
        scale = float(expected[name].abs().max())
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-6 * scale)


def test_it_is_added_to_what_is_there_and_frozen_parameters_stay() -> None:
    model = net()
    model[0].weight.requires_grad_(False)  # type: ignore[index, union-attr]
    first = accumulated(NoDefense(), model)
    accumulated(NoDefense(), model, seed=1)
    grads = {name: p.grad for name, p in model.named_parameters()}
    assert grads.pop("0.weight") is None
    other = accumulated(NoDefense(), deepcopy(model), seed=1)
    assert_close(grads, {n: first[n] + other[n] for n in first}, 1e-12)  # type: ignore[arg-type]


def assert_noise_of(scale: float, sent: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """4,803 entries: the standard deviation is known to 1 %."""
    noise = torch.cat([(sent[n] - expected[n]).flatten() for n in sent])
    assert abs(float(noise.std()) / scale - 1) < 0.04
    assert abs(float(noise.mean())) < 4 * scale / len(noise) ** 0.5


@pytest.mark.parametrize("sizes", [(16,), (4, 4, 4, 4), (1,) * 16, (13, 3)], ids=str)
def test_the_noise_is_that_of_one_batch(sizes: tuple[int, ...]) -> None:
    model, (inputs, targets) = net(600), batch(16)
    expected = plain(model, cross_entropy, inputs, targets)
    assert_noise_of(0.1, accumulated(GradientNoise(0.1), model, sizes=sizes), expected)


def test_several_calls_of_backward_have_twice_the_noise() -> None:
    """What `accumulate` is for; the test above would notice."""
    model, (inputs, targets) = net(600), batch(16)
    expected, noise = plain(model, cross_entropy, inputs, targets), generator()
    for x, y in zip(inputs.split(4), targets.split(4), strict=True):
        GradientNoise(0.1).backward(model, lambda o, t: cross_entropy(o, t) / 4, x, y, noise)
    sent = {name: p.grad for name, p in model.named_parameters()}
    with pytest.raises(AssertionError):
        assert_noise_of(0.1, sent, expected)  # type: ignore[arg-type]
    assert_noise_of(0.2, sent, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", DEFENSES)
def test_the_plan_is_that_of_the_large_batch(name: str, reduction: str) -> None:
    model, (inputs, targets) = net(), batch()
    loss = functools.partial(cross_entropy, reduction=reduction)
    defense = DEFENSES[name]()
    (found,) = planned(defense, lambda: accumulated(defense, model, loss))
    moments = measure(GradientMessage(model, loss, targets), inputs, Exact(), examples=True)
    expected = DEFENSES[name]().plan(moments)
    assert type(found) is type(expected)
    assert_close(levels(found), levels(expected), 1e-6)


@pytest.mark.parametrize("name", DEFENSES)
def test_one_micro_batch_is_backward(name: str) -> None:
    first, second, (inputs, targets) = net(), net(), batch(6)
    one, other = DEFENSES[name](), DEFENSES[name]()
    noise = generator()
    with one.accumulate(first, cross_entropy, noise) as step:
        step.add(inputs, targets)
    same = generator()
    other.backward(second, cross_entropy, inputs, targets, same)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)  # type: ignore[arg-type]
    assert torch.equal(noise.get_state(), same.get_state())


@pytest.mark.parametrize("name", DEFENSES)
def test_a_block_that_raises_leaves_everything_as_it_was(name: str) -> None:
    model, defense = net(), DEFENSES[name]()
    inputs, targets = batch()

    def block(*micro_batches: Tensor) -> None:
        with defense.accumulate(model, cross_entropy, generator()) as step:
            for each in micro_batches:
                step.add(each, targets)
            raise KeyError

    with pytest.raises(KeyError):
        block(inputs, inputs)
    with pytest.raises(NonFiniteError):
        block(inputs, inputs / 0)
    assert all(p.grad is None for p in model.parameters())
    assert defense.state_dict() == {}


def test_a_micro_batch_that_is_refused_is_left_out() -> None:
    model, (inputs, targets) = net(), batch()
    with NoDefense().accumulate(model, cross_entropy) as step:
        step.add(inputs[:8], targets[:8])
        with pytest.raises(NonFiniteError):
            step.add(inputs[8:] / 0, targets[8:])
    assert step.examples == 8
    assert_close(step.sent, plain(model, cross_entropy, inputs[:8], targets[:8]), 1e-9)  # type: ignore[arg-type]


def test_batch_norm_takes_each_micro_batch_by_itself() -> None:
    """As plain PyTorch does; its running statistics stay."""
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double().train()
    (inputs, targets), sizes = batch(16), (6, 10)
    parts = [
        plain(model, cross_entropy, x, y)
        for x, y in zip(inputs.split(sizes), targets.split(sizes), strict=True)
    ]
    expected = {n: (6 * parts[0][n] + 10 * parts[1][n]) / 16 for n in parts[0]}
    assert_close(accumulated(NoDefense(), model, sizes=sizes), expected, 1e-9)
    assert not bool(model[1].running_mean.any())  # type: ignore[index, operator, union-attr]


def test_dropout_is_drawn_anew_for_each_micro_batch() -> None:
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3)).double().train()
    inputs, targets = batch(1)

    def dropped(repeat: int) -> float:
        with NoDefense().accumulate(model, cross_entropy, generator()) as step:
            for _ in range(repeat):
                step.add(inputs, targets)
        return float((step.sent["2.weight"].abs().sum(0) == 0).sum())  # type: ignore[index]

    assert 16 < dropped(1) < 48
    assert dropped(8) < 4


def test_squares_that_get_too_small_are_not_lost() -> None:
    least = torch.finfo(torch.float32).tiny
    a, b = {"w": torch.tensor([least, 0.0, 1.0])}, {"w": torch.tensor([0.0, 0.0, 1.0])}
    mixed = _mix_squares(a, 1e-12, b, 0.25)
    assert mixed is not None
    torch.testing.assert_close(mixed["w"], torch.tensor([least, 0.0, 0.25]))


def test_the_second_estimate_is_that_of_all_micro_batches() -> None:
    """A target error is judged by it: of the first micro-batch alone it would promise too much."""

    def part(first: float, second: float, hidden: int) -> Moments:
        squares = {"w": torch.tensor([first, 1.0])}
        again = {"w": torch.tensor([second, 2.0])}
        return Moments({"w": torch.ones(2)}, squares, 3, second_squares=again, hidden=hidden)

    values = {"w": torch.ones(2)}
    first, second = (values, part(4.0, 8.0, 0)), (values, part(2.0, 16.0, 5))
    joined = _added(first, 0.25, second, 0.75)[1]
    expected = (0.25**2 * 8 + 0.75**2 * 16, (0.25**2 + 0.75**2) * 2)
    torch.testing.assert_close(
        joined.judged().known_squared_sensitivities["w"], torch.tensor(expected)
    )
    assert (joined.hidden, joined.input_size) == (5, 6)


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


@pytest.mark.parametrize(
    ("loss", "options", "words"),
    [
        (nn.CrossEntropyLoss(weight=torch.ones(3).double()), {}, "class weights"),
        (functools.partial(cross_entropy, weight=torch.ones(3).double()), {}, "class weights"),
        (functools.partial(cross_entropy, ignore_index=1), {}, "no ignored entries"),
        (contrastive, {}, "a mean or a sum over examples"),
        (lambda o, t: cross_entropy(o, t).square(), {}, "a mean or a sum over examples"),
        (lambda o, t: cross_entropy(o, t), {"reduction": "sum"}, "a sum over examples"),
        (lambda o, t: o.sum() * 0, {}, "Parameter `reduction` should be 'mean' or 'sum'"),
        (cross_entropy, {"reduction": "max"}, "Parameter `reduction` should be one of"),
    ],
    ids=["module", "partial", "ignored", "contrastive", "square", "wrong", "silent", "word"],
)
def test_losses_that_do_not_add_up_are_refused(loss: Any, options: Any, words: str) -> None:
    model = net()
    with pytest.raises(ValueError, match=words):
        accumulated(NoDefense(), model, loss, **options)
    assert all(p.grad is None for p in model.parameters())


def test_ignored_targets_are_refused_in_any_micro_batch() -> None:
    model, (inputs, targets) = net(), batch(8)
    with NoDefense().accumulate(model, cross_entropy) as step:
        step.add(inputs, targets)
        targets[3] = -100
        with pytest.raises(ValueError, match="Found 1 times -100"):
            step.add(inputs, targets)


def test_single_examples_of_an_unknown_loss_need_a_word() -> None:
    model, (inputs, targets) = net(), batch(2)
    with (
        pytest.raises(ValueError, match="Parameter `reduction` should be 'mean' or 'sum'"),
        NoDefense().accumulate(model, lambda o, t: cross_entropy(o, t)) as step,
    ):
        step.add(inputs[:1], targets[:1])
    told = accumulated(
        NoDefense(), model, lambda o, t: cross_entropy(o, t), (1, 1), reduction="mean"
    )
    assert_close(told, plain(model, cross_entropy, inputs, targets), 1e-9)


def test_regression_with_a_mean_over_elements() -> None:
    model, (inputs, _) = net(), batch(8)
    targets = inputs[:, :3].clone()
    with NoDefense().accumulate(model, mse_loss) as step:
        step.add(inputs[:2], targets[:2])
        step.add(inputs[2:], targets[2:])
    assert_close(step.sent, plain(model, mse_loss, inputs, targets), 1e-9)  # type: ignore[arg-type]


def test_weights_that_move_in_the_block_are_noticed() -> None:
    model, (inputs, targets) = net(), batch()

    def block() -> None:
        with NoDefense().accumulate(model, cross_entropy) as step:
            step.add(inputs, targets)
            with torch.no_grad():
                model[0].bias.add_(1.0)  # type: ignore[index, operator, union-attr]

    with pytest.raises(RuntimeError, match="they changed in the block"):
        block()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("change", ["mode", "buffer", "data"])
def test_a_private_step_has_one_state_of_the_model(change: str) -> None:
    """Its code runs for the first micro-batch only."""
    model = nn.Sequential(net(), nn.Dropout(), nn.BatchNorm1d(3).double()).eval()
    defense = PrivateNoise(1.0, 1.0, batch_size=8)
    inputs, targets = batch(4)
    with pytest.raises(RuntimeError, match="buffers and modes, too"):  # noqa: PT012, SIM117
        with defense.accumulate(model, cross_entropy) as step:
            step.add(inputs, targets)
            if change == "mode":
                model[1].train()
            elif change == "data":  # which bumps no version
                nn.utils.vector_to_parameters(torch.ones(57).double(), model.parameters())
            else:
                model[2].running_mean.add_(1.0)
            step.add(inputs, targets)


def test_a_step_is_one_block_with_something_in_it() -> None:
    model, (inputs, targets) = net(), batch()
    step = NoDefense().accumulate(model, cross_entropy)
    with pytest.raises(RuntimeError, match="inside of its block"):
        step.add(inputs, targets)
    with step:
        step.add(inputs, targets)
    with pytest.raises(RuntimeError, match="inside of its block"):
        step.add(inputs, targets)
    with pytest.raises(RuntimeError, match="entered once"), step:
        pass
    with pytest.raises(ValueError, match="at least one micro-batch"):
        NoDefense().accumulate(model, cross_entropy).__enter__().__exit__(None, None, None)


class Own(GradientNoise):
    """A defense with a response of its own."""

    def respond(self, message: Any, inputs: Any, generator: Any = None) -> Any:
        return {}


def test_a_defense_with_a_response_of_its_own_is_refused() -> None:
    with pytest.raises(TypeError, match=r"no `respond` of its own.*Found one in Own"):
        Own(0.1).accumulate(net(), cross_entropy)


def test_a_defense_that_looks_at_the_whole_batch_is_refused() -> None:
    """Of all examples only the number is left in the end: there Soteria failed inside of torch."""
    with pytest.raises(TypeError, match="Found Soteria, which looks at the message itself"):
        Soteria(0.5).accumulate(net(), cross_entropy)

"""Differentially private noise: its scale, its sensitivity, and what it refuses."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import Defense, GradientMessage, Moments, NonFiniteError, PrivateNoise
from gradveil.catalog import build_defense, spec_of
from gradveil.mechanisms import Mechanism
from gradveil.messages import ClippedMessage, ClippedUpdate
from gradveil.shapes import Shape
from tests.mechanisms.statistics import assert_noise_scale, assert_normal, draws
from tests.messages.clipped.oracle import clipped_mean, norm, own_gradients, shapes
from tests.messages.compare import assert_same
from tests.zoo import named


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shaped(name: str, kind: str = "rows and columns") -> Shape:
    return shapes(named(name).message().parameters)[kind]


def variances(shape: Shape | None, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """Σ_ii = r_i / mean(r), from the dense levels."""
    if shape is None:
        return {name: torch.ones_like(value) for name, value in like.items()}
    levels = shape.levels(like)
    mean = torch.cat([level.reshape(-1) for level in levels.values()]).mean()
    return {name: level / mean for name, level in levels.items()}


@pytest.mark.parametrize("kind", [None, "rows and columns", "entries"])
def test_noise_has_the_scale_z_c_root_sigma_over_b(kind: str | None):
    case = named("mlp")
    shape = None if kind is None else shaped("mlp", kind)
    defense = PrivateNoise(0.7, 0.2, shape, batch_size=5)
    values, mechanism, sent = defense.respond(case.message(), case.inputs(), seeded())
    assert isinstance(mechanism, Mechanism)
    std = {n: 0.7 * 0.2 / 5 * v.sqrt() for n, v in variances(shape, values).items()}
    assert_same({n: s.expand(values[n].shape) for n, s in mechanism.std.items()}, std)
    assert_same(sent, mechanism.apply(values, seeded()), tolerance=0.0, noise=0.0)
    noisy = draws(lambda generator: mechanism.apply(values, generator), 200)
    residuals = {name: samples - values[name] for name, samples in noisy.items()}
    assert_noise_scale(residuals, std)
    assert_normal(residuals, std)


def test_what_is_sent_is_the_clipped_sum_over_b():
    case, shape = named("conv_net"), shaped("conv_net")
    gradients = own_gradients(case)
    clip = 0.6 * norm(gradients[0], shape.levels(gradients[0]))
    defense = PrivateNoise(1.0, clip, shape, 11, grid=False)
    values = defense.respond(case.message(), case.inputs()).values
    assert_same(values, clipped_mean(gradients, clip, 11, shape.levels(gradients[0])))


@pytest.mark.parametrize("kind", [None, "layers", "rows and columns", "entries"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adding_an_example_moves_the_sum_by_at_most_c(kind: str | None, dtype: torch.dtype):
    """Against neighbours of all sizes, and 2C for replacing; the bound is reached."""
    generator = seeded(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)
    like = {n: p.detach().double() for n, p in model.named_parameters()}
    shape = None if kind is None else shapes(like)[kind]
    levels = None if shape is None else shape.levels(like)
    clip, size = 0.3, 8
    defense = PrivateNoise(1.0, clip, shape, size)

    def total(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        message = GradientMessage(model, cross_entropy, targets)
        values = defense.respond(message, inputs, seeded()).values
        return {n: size * v.double() for n, v in values.items()}

    reached = most = 0.0
    for scale in 10.0 ** torch.arange(-3, 4):
        inputs = scale * torch.randn(5, 4, generator=generator).to(dtype)
        targets = torch.randint(3, (5,), generator=generator)
        whole, without = total(inputs, targets), total(inputs[:-1], targets[:-1])
        moved = norm({n: whole[n] - without[n] for n in whole}, levels)
        label = (targets[-1:] + 1) % 3
        other = total(torch.cat([inputs[:-1], -inputs[-1:]]), torch.cat([targets[:-1], label]))
        replaced = norm({n: whole[n] - other[n] for n in whole}, levels)
        rounding = 1e-5 if dtype == torch.float32 else 1e-12
        assert moved <= clip + rounding
        assert replaced <= 2 * clip + rounding
        reached = max(reached, moved)
        most = max(most, replaced)
    assert reached > 0.99 * clip
    assert most > 1.5 * clip


def test_an_empty_batch_sends_noise_alone():
    case = named("mlp")
    defense = PrivateNoise(2.0, 0.5, batch_size=4)
    message = GradientMessage(case.model(), case.loss(), torch.zeros(0, dtype=torch.int64))
    values, _, sent = defense.respond(message, case.inputs()[:0], seeded())
    assert not any(bool(v.any()) for v in values.values())
    noise = torch.cat([v.reshape(-1) for v in sent.values()])
    assert float(noise.std()) == pytest.approx(0.25, rel=0.3)
    model = case.model()
    defense.backward(model, case.loss(), case.inputs()[:0], message.targets, seeded())
    assert all(bool(p.grad.any()) for p in model.parameters())


@pytest.mark.parametrize("defense", [PrivateNoise(1.0, 1.0), PrivateNoise(1.0, 1.0, unit="client")])
def test_an_empty_batch_needs_a_size_that_is_known(defense: PrivateNoise):
    case = named("mlp")
    with pytest.raises(ValueError, match="non-empty batch"):
        defense(case.message(), case.inputs()[:0])


def test_without_a_size_the_number_of_examples_divides():
    case = named("mlp")
    open_, fixed = PrivateNoise(1.0, 0.1), PrivateNoise(1.0, 0.1, batch_size=len(case.inputs()))
    assert_same(
        open_(case.message(), case.inputs(), seeded()),
        fixed(case.message(), case.inputs(), seeded()),
    )
    with pytest.raises(ValueError, match="`batch_size` should be given where noise is made"):
        open_.plan(Moments({"w": torch.ones(2)}, None, 1))


def test_an_update_is_clipped_as_a_whole():
    case = named("mlp")
    update, shape = case.local_update(), shaped("mlp")
    length = norm(update(case.inputs()), shape.levels(update(case.inputs())))
    defense = PrivateNoise(1.5, 0.1 * length, shape, unit="client", grid=False)
    values, mechanism, _ = defense.respond(update, case.inputs(), seeded())
    assert norm(values, shape.levels(values)) == pytest.approx(0.1 * length)
    assert_same(values, {n: 0.1 * v for n, v in update(case.inputs()).items()})
    expected = {n: 0.15 * length * v.sqrt() for n, v in variances(shape, values).items()}
    assert_same(mechanism.std, expected)


def test_micro_batches_are_one_clipped_sum_with_one_draw():
    case = named("mlp")
    inputs, targets = case.inputs(), case.targets()
    defense = PrivateNoise(1e-12, 0.05, batch_size=9, grid=False)
    whole = defense(case.message(), inputs, seeded())
    model = case.model()
    with defense.accumulate(model, case.loss(), seeded()) as step:
        step.add(inputs[:1], targets[:1])
        step.add(inputs[1:], targets[1:])
    assert step.sent is not None
    assert_same(step.sent, whole, tolerance=1e-8)
    loud, generator, noise = PrivateNoise(5.0, 0.05, batch_size=9), seeded(), []
    for _ in range(12):
        with loud.accumulate(case.model(), case.loss(), generator) as step:
            step.add(inputs[:2], targets[:2])
            step.add(inputs[2:], targets[2:])
        assert step.sent is not None
        noise += [(v - whole[n]).reshape(-1) for n, v in step.sent.items()]
    assert float(torch.cat(noise).std()) == pytest.approx(5 * 0.05 / 9, rel=0.1)  # two draws: 1.41


@pytest.mark.parametrize("defense", [PrivateNoise(1.0, 1.0), PrivateNoise(1.0, 1.0, unit="client")])
def test_micro_batches_need_a_size(defense: PrivateNoise):
    with pytest.raises(ValueError, match="should have unit='example' and a `batch_size`"):
        defense.accumulate(nn.Linear(2, 2), cross_entropy)


def test_a_step_for_which_nobody_was_drawn_accumulates_noise_alone():
    model, nobody = nn.Linear(3, 2), (torch.zeros(0, 3), torch.zeros(0).long())
    defense = PrivateNoise(1.0, 1.0, batch_size=4)
    with defense.accumulate(model, cross_entropy, seeded()) as step:
        step.add(*nobody)
    assert step.sent is not None
    assert_same(step.sent, defense.backward(nn.Linear(3, 2), cross_entropy, *nobody, seeded()))


def test_it_is_not_taken_apart():
    """A mechanism alone would send values that are not clipped."""
    with pytest.raises(TypeError, match="should send the message that it gets"):
        Defense.check_accumulates(PrivateNoise(1.0, 1.0))


def test_what_it_says_of_itself():
    defense = PrivateNoise(1.5, 0.25, batch_size=8)
    assert (defense.about.private, defense.about.varies, defense.about.needs.sensitivities) == (
        False, False, False)  # fmt: skip
    assert defense.about.clamp is None
    assert defense.about.label == "private noise"
    assert "(ε, δ) for each example" in defense.about.formal_privacy
    assert isinstance(defense.prepared(named("mlp").message()), ClippedMessage)
    client = PrivateNoise(1.0, 1.0, unit="client")
    assert isinstance(client.prepared(named("mlp").message()), ClippedUpdate)


def test_its_specification():
    defense = build_defense("private-noise(noise_multiplier=1.5, clip=0.25, batch_size=8)")
    assert defense == PrivateNoise(1.5, 0.25, batch_size=8)
    assert spec_of(defense) == "private-noise(noise_multiplier=1.5, clip=0.25, batch_size=8)"
    text = spec_of(PrivateNoise(1.0, 1.0, shaped("mlp")))
    assert text == "private-noise(noise_multiplier=1.0, clip=1.0, metric=<shape of 29 numbers>)"


WRONG = {
    "noise_multiplier": ({"noise_multiplier": 0.0}, r"`noise_multiplier` should be a finite"),
    "infinite": ({"noise_multiplier": float("inf")}, r"`noise_multiplier` should be a finite"),
    "clip": ({"clip": -1.0}, r"`clip` should be a finite number above 0"),
    "metric": ({"metric": 1.0}, r"`metric` should be of type Shape"),
    "batch_size": ({"batch_size": 0}, r"`batch_size` should be an integer of at least 1"),
    "no room": ({"noise_multiplier": 1e-5}, r"at least 0\.0001 on a grid.*Use grid=False"),
    "grid": ({"grid": 20}, r"`grid` should be"),
    "unit": ({"unit": "user"}, r"`unit` should be one of \['example', 'client'\]"),
    "both": ({"unit": "client", "batch_size": 4}, r"`batch_size` should be left out"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options(name: str):
    options, text = WRONG[name]
    with pytest.raises((ValueError, TypeError), match=text):
        PrivateNoise(**{"noise_multiplier": 1.0, "clip": 1.0, **options})


def test_updates_need_the_unit_client():
    case = named("mlp")
    with pytest.raises(TypeError, match="unit='client'"):
        PrivateNoise(1.0, 1.0)(case.local_update(), case.inputs())


def test_a_shape_of_another_model():
    case = named("mlp")
    defense = PrivateNoise(1.0, 1.0, Shape({"w": (torch.ones(1),)}))
    with pytest.raises(ValueError, match="should have the parameters"):
        defense(case.message(), case.inputs())


def test_levels_that_vanish_beside_the_others_are_refused():
    """A level of 0 would switch the noise off."""
    like = {"a": torch.zeros(1), "b": torch.zeros(1)}
    low, high = torch.tensor([2e-8]), torch.tensor([5e7])
    shape = Shape({"a": (low,) * 6 + (high,) * 6, "b": (torch.ones(1),)})
    with pytest.raises(ValueError, match="Found some of `a` that vanish"):
        PrivateNoise(1.0, 1.0, shape, 1).plan(Moments(like, None, 1))


def test_nothing_is_sent_of_a_broken_batch():
    message = GradientMessage(nn.Linear(2, 2), lambda o, _: 1e39 * o.sum(), None)
    with pytest.raises(NonFiniteError, match="Nothing was sent"):
        PrivateNoise(1.0, 1.0)(message, torch.ones(2, 2))
    with pytest.raises(NonFiniteError, match="`inputs` should be finite"):
        PrivateNoise(1.0, 1.0)(message, torch.full((2, 2), float("nan")))


def test_same_seed_same_bytes_and_all_of_it_finite():
    case = named("transformer")
    send = partial(PrivateNoise(3.0, 0.1, shaped("transformer")), case.message(), case.inputs())
    first, second = send(seeded(1)), send(seeded(1))
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert all(bool(v.isfinite().all()) for v in first.values())
    assert not torch.equal(first["2.weight"], send(seeded(2))["2.weight"])


def test_it_trains():
    """Separable points, so that even noisy steps find the direction."""
    generator = seeded(0)
    inputs = torch.randn(64, 5, generator=generator)
    targets = (inputs[:, 0] > 0).long()
    model = nn.Linear(5, 2)
    defense = PrivateNoise(1.0, 1.0, batch_size=64)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    for _ in range(30):
        optimizer.zero_grad()
        defense.backward(model, cross_entropy, inputs, targets, generator)
        optimizer.step()
    assert float((model(inputs).argmax(1) == targets).float().mean()) > 0.9


def test_options_can_be_replaced():
    assert replace(PrivateNoise(1.0, 1.0), noise_multiplier=2.0) == PrivateNoise(2.0, 1.0)

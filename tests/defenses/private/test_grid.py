"""Private noise on a grid: what can be sent, how far examples move it, and its scale."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import FromServer, GradientMessage, PrivateNoise
from gradveil.mechanisms import GridMechanism, Mechanism
from gradveil.messages import values_of
from gradveil.privacy import SecureGenerator
from gradveil.shapes import Shape
from tests.attacks.likelihood import log_likelihood
from tests.mechanisms.statistics import assert_noise_scale, assert_normal, draws
from tests.messages.clipped.oracle import shapes
from tests.zoo import named

Tensors = dict[str, Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def steps_on(mechanism: Mechanism) -> Tensors:
    """The step of each entry, in float64."""
    assert isinstance(mechanism, GridMechanism)
    assert isinstance(mechanism.std, dict)
    return {name: std.double() * 2.0**-mechanism.bits for name, std in mechanism.std.items()}


def is_on_grid(sent: Tensors, mechanism: GridMechanism) -> bool:
    """Whether each entry is the float that is nearest to a multiple of its step."""
    steps = steps_on(mechanism)
    return all(
        torch.equal(((y.double() / steps[n]).round() * steps[n]).to(y.dtype), y)
        for n, y in sent.items()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [None, "rows and columns", "entries"])
@pytest.mark.parametrize("unit", ["example", "client"])
def test_all_that_is_sent_are_multiples_of_public_steps(dtype, kind, unit):
    case = named("conv_net")
    message = case.message(dtype)
    shape = None if kind is None else shapes(message.parameters)[kind]
    size = 7 if unit == "example" else None
    defense = PrivateNoise(0.9, 0.3, shape, size, unit)
    for generator in (seeded(), SecureGenerator()):
        _, mechanism, sent = defense.respond(message, case.inputs().to(dtype), generator)
        assert isinstance(mechanism, GridMechanism)
        assert is_on_grid(sent, mechanism)
        assert {y.dtype for y in sent.values()} == {dtype}
        plain = replace(defense, grid=False).plan(defense.observe(message, case.inputs().to(dtype),
                                                                   generator)[1])  # fmt: skip
        for name, level in plain.std.items():  # nothing of the batch is in it
            assert torch.equal(steps_on(mechanism)[name], level.double() * 2.0**-mechanism.bits)


def test_continuous_noise_is_not_on_the_grid_and_gives_a_batch_away():
    """Mironov's attack: floats that no noise makes of 1/3, as sums near 1/3 end in fewer bits.

    A continuous message of a batch whose value is 0 shows that it was not 1/3. On the grid every
    number that one of them sends could have come from the other, too.
    """
    std, zero, third = {"w": torch.ones(20_000)}, torch.zeros(20_000), torch.full((20_000,), 1 / 3)
    for mechanism, same in ((Mechanism(std), False), (GridMechanism(std), True)):
        sent = mechanism.apply({"w": zero}, seeded(1))["w"]
        assert bool(_noise_exists(sent, zero, mechanism).all())
        assert bool(_noise_exists(sent, third, mechanism).all()) == same
        for value in (zero, third):
            sent = mechanism.apply({"w": value}, seeded(1))["w"]
            assert is_on_grid({"w": sent}, GridMechanism(std)) == same


def _noise_exists(sent: Tensor, value: Tensor, mechanism: Mechanism) -> Tensor:
    """Whether some noise, of the floats that can be drawn, makes what was sent of this value."""
    if isinstance(mechanism, GridMechanism):
        step = steps_on(mechanism)["w"]
        noise = (sent.double() / step).round() - (value.double() / step).round()
        return (((value.double() / step).round() + noise) * step).float() == sent
    noise = (sent - value).float()
    around = (torch.nextafter(noise, noise.new_tensor(end)) for end in (-torch.inf, torch.inf))
    return torch.stack([n + value == sent for n in (noise, *around)]).any(0)


@pytest.mark.parametrize("kind", [None, "rows and columns"])
def test_the_noise_has_its_scale(kind):
    case = named("mlp")
    shape = None if kind is None else shapes(case.message().parameters)[kind]
    values, mechanism, _ = PrivateNoise(0.7, 0.2, shape, 5).respond(
        case.message(), case.inputs(), seeded()
    )
    noisy = draws(lambda generator: mechanism.apply(values, generator), 200)
    residuals = {name: samples - values[name] for name, samples in noisy.items()}
    std = {n: s.expand(values[n].shape) for n, s in mechanism.std.items()}
    assert_noise_scale(residuals, std)  # rejects 2/3 and 3/2
    assert_normal(residuals, std)


def linear(rows: Tensor, grid: float | None) -> tuple[GradientMessage, PrivateNoise]:
    """A loss whose gradients are the inputs themselves."""
    message = GradientMessage(nn.Linear(rows.shape[1], 1, bias=False), lambda o, _: o.sum(), None)
    return message, PrivateNoise(grid or 1.0, 1.0, batch_size=1, grid=grid is not None)


def steps_of(defense: PrivateNoise, message: GradientMessage, rows: Tensor) -> Tensor:
    """What is rounded to the grid, in steps, and these in units of the clip."""
    values, moments = defense.observe(message, rows, seeded())
    step = steps_on(defense.plan(moments))["weight"]
    return ((values["weight"] / step).round() * step).flatten()


@pytest.mark.parametrize("entries", [1, 9, 1000])
@pytest.mark.parametrize("multiplier", [0.5, 3000.0])
def test_rounded_sums_move_by_the_clip_at_most(entries, multiplier):
    """Sums on the edge of their cells, where an example moves each entry by a step more."""
    generator = seeded(2)
    empty = torch.zeros(0, entries)
    message, defense = linear(empty, multiplier)
    moments = defense.observe(message, empty, seeded())[1]
    step = float(steps_on(defense.plan(moments))["weight"].flatten()[0])
    reached = 0.0
    for _ in range(100):
        edge = 0.4999 * step * torch.ones(1, entries)
        added = 1e3 * torch.rand(1, entries, generator=generator)
        without, whole = (steps_of(defense, message, rows) for rows in
                          (edge, torch.cat([edge, added])))  # fmt: skip
        moved = float((whole - without).norm())
        assert moved <= 1.0
        reached = max(reached, moved)
    assert reached > 0.99 - 2 * entries**0.5 * step


def test_without_the_smaller_clip_rounding_would_exceed_it(monkeypatch):
    """The test above tells: clipped to 1 itself, the same sums move by more."""
    entries, multiplier = 1000, 3000.0
    monkeypatch.setattr("gradveil.messages._clipped._metric.Metric.limit", lambda _, clip: clip)
    message, defense = linear(torch.zeros(0, entries), multiplier)
    moments = defense.observe(message, torch.zeros(0, entries), seeded())[1]
    step = float(steps_on(defense.plan(moments))["weight"].flatten()[0])
    edge = 0.4999 * step * torch.ones(1, entries)
    sums = [edge, torch.cat([edge, 1e3 * torch.rand(1, entries, generator=seeded(2))])]
    moved = [steps_of(defense, message, rows) for rows in sums]
    assert float((moved[1] - moved[0]).norm()) > 1.0


def test_large_batches_are_added_up_without_loss():
    rows = torch.full((4096, 2), 1e-3)
    rows[0] = 0.7
    message, defense = linear(rows, 1.0)
    exact = rows.double().sum(0)
    found = values_of(defense.prepared(message), rows)["weight"].flatten()
    assert float((found - exact).abs().max()) < 1e-12
    plain = values_of(replace(defense, grid=False).prepared(message), rows)["weight"].flatten()
    assert float((plain - exact).abs().max()) > 1e-8


def test_micro_batches_end_on_the_grid():
    case = named("mlp")
    inputs, targets = case.inputs(), case.targets()
    model = case.model()
    with PrivateNoise(1.0, 0.05, batch_size=9).accumulate(model, case.loss(), seeded()) as step:
        step.add(inputs[:1], targets[:1])
        step.add(inputs[1:], targets[1:])
    std = {n: p.new_tensor(1.0 * 0.05 / 9).expand(p.shape) for n, p in model.named_parameters()}
    assert step.sent is not None
    assert is_on_grid(step.sent, GridMechanism(std))


def test_same_seed_same_bytes():
    case = named("mlp")
    defense = PrivateNoise(1.0, 0.3, batch_size=4)
    first, second, other = (
        defense(case.message(), case.inputs(), seeded(seed)) for seed in (5, 5, 6)
    )
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert not any(torch.equal(first[n], other[n]) for n in first)


def test_it_reads_as_a_gaussian():
    """Theory and attacks see the same numbers as for continuous noise."""
    std = {"w": torch.tensor([0.5, 2.0])}
    grid, plain = GridMechanism(std), Mechanism(std)
    values, sent = {"w": torch.tensor([0.1, -3.0])}, {"w": torch.tensor([0.4, 1.0])}
    for method in ("mean", "variance", "information"):
        assert torch.equal(getattr(grid, method)(values)["w"], getattr(plain, method)(values)["w"])
    assert log_likelihood(grid, values, sent) == log_likelihood(plain, values, sent)


@pytest.mark.parametrize("grid", [True, False])
@pytest.mark.parametrize("unit", ["example", "client"])
def test_entries_without_noise_are_never_sent(grid, unit):
    """Levels of 0: the rest is clipped and noised as if these entries were not there."""
    case = named("mlp")
    message, inputs = case.message(), case.inputs()
    factors = {n: (torch.ones_like(p),) for n, p in message.parameters.items()}
    factors["0.weight"] = (torch.tensor([[1.0], *[[0.0]] * (len(factors["0.bias"][0]) - 1)]),
                           torch.ones_like(factors["0.weight"][0][:1]))  # fmt: skip
    size = 4 if unit == "example" else None
    defense = PrivateNoise(1.0, 1e-3, Shape(factors, silent=True), size, unit, grid=grid)
    values, mechanism, sent = defense.respond(message, inputs, seeded())
    for found in (values, sent, defense.prepared(message)(inputs)):
        assert not bool(found["0.weight"][1:].any())
        assert bool(found["0.weight"][0].all())
    assert {bool(y.all()) for n, y in sent.items() if n != "0.weight"} == {True}
    assert not bool(mechanism.information(values)["0.weight"][1:].any())
    whole = torch.cat([v.reshape(-1) for v in values.values()]).norm()
    if unit == "client":  # all of it is far above the clip
        entries = sum(v.numel() for v in values.values())
        mean = 1 - factors["0.weight"][0].eq(0).sum() * inputs.shape[1] / entries
        assert float(whole) == pytest.approx(1e-3 / float(mean) ** 0.5, rel=2e-3)


def test_a_level_of_0_is_refused_from_a_server():
    shape = Shape({"w": (torch.tensor([1.0, 0.0]),)}, silent=True)
    with pytest.raises(ValueError, match="would switch the noise off"):
        FromServer().use(shape)
    with pytest.raises(ValueError, match="finite and above 0"):
        Shape({"w": (torch.tensor([1.0, -1.0]),)}, silent=True)


def test_a_grid_has_no_clamps_and_no_silent_entries():
    with pytest.raises(ValueError, match="should send entries as they are"):
        GridMechanism(1.0, clip=0.5)
    silent = GridMechanism({"w": torch.tensor([1.0, 0.0])})
    with pytest.raises(ValueError, match="Send no entry without noise"):
        silent.apply({"w": torch.zeros(2)})


def test_cross_entropy_of_a_whole_batch():
    """A grid with many bits, where z is large."""
    model = nn.Linear(400, 10)
    message = GradientMessage(model, cross_entropy, torch.arange(10))
    mechanism = PrivateNoise(100.0, 1.0).respond(message, torch.randn(10, 400)).mechanism
    assert isinstance(mechanism, GridMechanism)
    assert mechanism.bits == 23

"""Plans in a shape that a server sends: what the client guarantees whatever the shape."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gradveil import (
    Defense,
    FromServer,
    GradientMessage,
    GradientNoise,
    GradientPruning,
    Moments,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
)
from gradveil.catalog import build_defense, spec_of
from gradveil.mechanisms import Mechanism, RoundingMechanism
from gradveil.models import build_model
from gradveil.shapes import Request, Shape
from tests.defenses.cases import FREE, batch, message, row

LIKE = {
    "first": torch.zeros(8, 5, dtype=torch.float64),
    "bias": torch.zeros(8, dtype=torch.float64),
    "head": torch.zeros(30, 20, dtype=torch.float64),
    "scalar": torch.zeros((), dtype=torch.float64),
}
ENTRIES = sum(value.numel() for value in LIKE.values())


def drawn(seed: int = 0, decades: float = 0.3) -> Shape:
    """Rows, columns and one number of each matrix; one number for the others."""
    generator = torch.Generator().manual_seed(seed)

    def levels(*shape: int) -> Tensor:
        return 10 ** (decades * torch.randn(shape, generator=generator, dtype=torch.float64))

    return Shape(
        {
            "first": (levels(8, 1), levels(1, 5), levels(1, 1)),
            "bias": (levels(8),),
            "head": (levels(30, 1), levels(1, 20)),
            "scalar": (levels(),),
        }
    )


def entry_wise(levels: Tensor) -> Shape:
    parts = levels.split([value.numel() for value in LIKE.values()])
    pairs = zip(LIKE.items(), parts, strict=True)
    return Shape({name: (part.view(value.shape),) for (name, value), part in pairs})


def shaped(shape: Shape) -> Moments:
    """Moments from which every defense plans with this shape: E‖∇g_i‖² = r_i², E g_i² = 1."""
    levels = shape.levels(LIKE)
    ones = {name: torch.ones_like(level) for name, level in levels.items()}
    return Moments(ones, {name: r.square() for name, r in levels.items()}, 10)


def served(defense: Any, shape: Shape | None = None, **limits: float) -> Any:
    """The same defense with its shape from a server."""
    source = FromServer(**limits)
    if shape is not None:
        source.use(shape)
    return replace(defense, source=source)


def mechanism_of(defense: Defense, like: dict[str, Tensor] = LIKE) -> Any:
    inputs, generator = torch.zeros(1, 10), torch.Generator()
    asked = Request(defense.needs, like, message, inputs, generator)
    return defense.made(defense.origin.given(asked))


def planned(defense: Defense, shape: Shape | None = None, **limits: float) -> Mechanism:
    mechanism = mechanism_of(served(defense, shape, **limits))
    assert isinstance(mechanism, Mechanism)
    return mechanism


def std_of(mechanism: Mechanism) -> Tensor:
    assert isinstance(mechanism.std, dict)
    return row(mechanism.std)


FREE_LIMITS = {"floor": 0.0, "cap": 1e9}


@pytest.mark.parametrize("granularity", ["parameter", "layer"])
def test_without_limits_the_plan_is_that_of_the_shapes_moments(granularity: str) -> None:
    noise = OptimalNoise(0.3, granularity=granularity, **FREE)
    expected = noise.plan(shaped(drawn()))
    mechanism = planned(noise, drawn(), **FREE_LIMITS)
    torch.testing.assert_close(std_of(mechanism), std_of(expected), rtol=1e-10, atol=0)
    assert row(mechanism.keep).eq(1).all()


@pytest.mark.parametrize(
    "sizes", [((),), ((1,), (5,)), ((1, 1), (1, 5)), ((8, 5), (8, 1)), ((1, 5), (8, 1), ()), ()]
)
def test_factors_of_all_sizes_that_broadcast_are_taken(sizes: tuple[tuple[int, ...], ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    parts = tuple(torch.rand(size, generator=generator).double() + 0.5 for size in sizes)
    shape = Shape({**drawn().factors, "first": parts})
    expected = OptimalNoise(0.3, **FREE).plan(shaped(shape))
    mechanism = planned(OptimalNoise(0.3), shape, **FREE_LIMITS)
    torch.testing.assert_close(std_of(mechanism), std_of(expected), rtol=1e-10, atol=0)


@pytest.mark.parametrize("noise", [None, OptimalNoise(0.3, **FREE), GradientNoise(0.3)])
def test_pruning_without_limits_is_that_of_the_shapes_moments(noise: Defense | None) -> None:
    pruning = OptimalPruning(0.4, noise=noise, floor=0.0)
    expected = pruning.plan(shaped(drawn()))
    mechanism = planned(pruning, drawn(), **FREE_LIMITS)
    assert torch.equal(row(mechanism.keep), row(expected.keep))
    torch.testing.assert_close(std_of(mechanism), std_of(expected), rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    "pruning",
    [
        OptimalPruning(1.0, noise=GradientNoise(0.3)),
        OptimalPruning(1.0, noise=OptimalNoise(0.3)),
        GradientPruning(1.0, noise=OptimalNoise(0.3)),
    ],
)
def test_where_everything_is_pruned_zeros_are_sent(pruning: Defense) -> None:
    """There is nothing to spread the noise on, and that is no division by 0."""
    values = {name: torch.ones_like(value) for name, value in LIKE.items()}
    sent = planned(pruning, drawn()).apply(values, torch.Generator().manual_seed(0))
    assert all(not bool(value.any()) for value in sent.values())


def test_rounding_without_limits_is_that_of_the_shapes_moments() -> None:
    wrapped = served(OptimalRounding(0.3), drawn(), **FREE_LIMITS)
    mechanism = mechanism_of(wrapped)
    expected = OptimalNoise(0.3, **FREE).plan(shaped(drawn()))
    assert isinstance(mechanism, RoundingMechanism)
    torch.testing.assert_close(row(mechanism.step), row(expected.std), rtol=1e-10, atol=0)


@pytest.mark.parametrize("clip", [0.01, 3.0])
def test_clamped_noise_has_the_shape_whatever_the_threshold(clip: float) -> None:
    clamped = planned(OptimalClampedNoise(0.3, clip=clip), drawn())
    assert clamped.clip == clip
    assert torch.equal(std_of(clamped), std_of(planned(OptimalNoise(0.3), drawn())))


@pytest.mark.parametrize("floor", [0.0, 0.05, 0.5, 1.0])
def test_the_floor_mixes_the_shape_with_isotropic_noise(floor: float) -> None:
    free = std_of(planned(OptimalNoise(0.3), drawn(), floor=0.0, cap=1e9)).square()
    mixed = std_of(planned(OptimalNoise(0.3), drawn(), floor=floor, cap=1e9)).square()
    expected = (1 - floor**2) * free + floor**2 * 0.09
    torch.testing.assert_close(mixed, expected, rtol=1e-10, atol=0)


def test_levels_above_the_cap_count_as_the_cap() -> None:
    levels = torch.ones(ENTRIES, dtype=torch.float64)
    levels[:3] = 1e3
    over = levels / levels.log().mean().exp()
    expected = 0.09 * over.clamp(max=7.0) / over.clamp(max=7.0).mean()
    mechanism = planned(OptimalNoise(0.3), entry_wise(levels), floor=0.0, cap=7.0)
    torch.testing.assert_close(std_of(mechanism).square(), expected, rtol=1e-10, atol=0)


def one_huge() -> Tensor:
    levels = torch.ones(ENTRIES, dtype=torch.float64)
    levels[7] = 1e30
    return levels


def half_huge() -> Tensor:
    levels = torch.ones(ENTRIES, dtype=torch.float64)
    levels[::2] = 1e30
    return levels


def tiny_tensor() -> Tensor:
    levels = torch.ones(ENTRIES, dtype=torch.float64)
    levels[:40] = 1e-30
    return levels


def singled_out() -> Tensor:
    levels = torch.full((ENTRIES,), 1e30, dtype=torch.float64)
    levels[[3, 50, 200]] = 1e-30
    return levels


def wild() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return 10 ** (20 * torch.randn(ENTRIES, generator=generator, dtype=torch.float64)).clamp(
        -300, 300
    )


HOSTILE = {
    "one huge entry": one_huge,
    "half huge": half_huge,
    "a tiny tensor": tiny_tensor,
    "three entries singled out": singled_out,
    "anything at all": wild,
}
NOISY = {
    "noise": OptimalNoise(0.3),
    "a level for each tensor": OptimalNoise(0.3, granularity="layer"),
    "clamped": OptimalClampedNoise(0.3, clip=0.1),
    "pruning": OptimalPruning(0.4, noise=OptimalNoise(0.3)),
    "pruning, equal noise": OptimalPruning(0.4, noise=GradientNoise(0.3)),
}


@pytest.mark.parametrize("floor", [0.05, 0.5])
@pytest.mark.parametrize("defense", NOISY.values(), ids=NOISY.keys())
@pytest.mark.parametrize("levels", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_shape_switches_noise_off(levels, defense: Defense, floor: float) -> None:
    mechanism = planned(defense, entry_wise(levels()), floor=floor)
    kept = row(mechanism.keep) == 1
    std = std_of(mechanism)[kept]
    assert len(std) == ENTRIES - (round(0.4 * ENTRIES) if "Pruning" in repr(defense) else 0)
    assert float(std.min()) >= 0.3 * floor * (1 - 1e-9)
    assert float(std.square().mean().sqrt()) == pytest.approx(0.3, rel=1e-9)
    assert bool((std_of(mechanism)[~kept] == 0).all())


def test_in_float32_the_floor_holds_as_well() -> None:
    for levels in HOSTILE.values():
        wrapped = served(OptimalNoise(0.3), entry_wise(levels()))
        like = {name: value.float() for name, value in LIKE.items()}
        std = std_of(mechanism_of(wrapped, like))
        assert float(std.min()) >= 0.3 * 0.05 * (1 - 1e-6)
        assert float(std.square().mean().sqrt()) == pytest.approx(0.3, rel=1e-5)


@pytest.mark.parametrize("share", [1 / ENTRIES, 0.01])
@pytest.mark.parametrize("factors", [1, 4])
def test_a_few_entries_cannot_soak_up_the_noise(share: float, factors: int) -> None:
    """Whatever one in a hundred asks for, the others keep 0.9 of the scale."""
    like = {"w": torch.zeros(20, 1000), "b": torch.zeros(10, 10)}
    size = 20_100
    for level in (1e3, 1e30):
        parts = []
        for _ in range(factors):
            part = torch.ones(20, 1000, dtype=torch.float64)
            part.view(-1)[: int(share * size)] = level
            parts.append(part)
        shape = Shape({"w": tuple(parts), "b": (torch.tensor(level),)})
        std = row(mechanism_of(served(OptimalNoise(0.3), shape), like).std)
        others = std[int(share * size) : 20_000]
        assert float(others.square().mean().sqrt()) >= 0.9 * 0.3


def test_noise_that_is_sent_is_isotropic_noise_of_the_floor_and_more() -> None:
    """Monte Carlo: the least variance over entries is that of the floor, not 2/3 or 3/2 of it."""
    mechanism = planned(OptimalNoise(0.3), entry_wise(singled_out()), floor=0.2)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([row(mechanism.apply(LIKE, generator)) for _ in range(4000)])
    lowest = draws[:, [3, 50, 200]].std()
    assert 0.97 < float(lowest) / 0.06 < 1.03
    assert 0.99 < float(draws.square().mean().sqrt()) / 0.3 < 1.01


def test_before_a_first_shape_all_levels_are_equal() -> None:
    mechanism = planned(OptimalNoise(0.3))
    assert std_of(mechanism).sub(0.3).abs().max() < 1e-12


def test_a_step_is_one_plain_message() -> None:
    calls: list[Tensor] = []

    def counted(inputs: Tensor) -> dict[str, Tensor]:
        calls.append(inputs)
        return message(inputs)

    wrapped = served(OptimalNoise(0.3))
    values, mechanism, sent = wrapped.respond(counted, batch(), torch.Generator().manual_seed(1))
    assert len(calls) == 1
    expected = mechanism.apply(values, torch.Generator().manual_seed(1))
    assert all(torch.equal(sent[name], expected[name]) for name in sent)


def test_the_private_batch_does_not_enter_the_mechanism() -> None:
    parts = {name: (torch.rand_like(value) + 0.1,) for name, value in message(batch()).items()}
    wrapped = served(OptimalNoise(0.3), Shape(parts))
    one, other = (wrapped.respond(message, batch(seed)).mechanism for seed in (0, 1))
    assert all(torch.equal(one.std[name], other.std[name]) for name in one.std)
    assert not wrapped.about.private
    assert not wrapped.about.varies


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        ({"first": torch.ones(1)}, "type Shape"),
        (None, "type Shape"),
    ],
)
def test_what_is_no_shape_is_refused_at_once(shape: object, word: str) -> None:
    with pytest.raises((TypeError, ValueError), match=word):
        FromServer().use(shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [float("nan"), float("inf"), 0.0, -1.0])
def test_levels_that_are_none_make_no_shape(level: float) -> None:
    with pytest.raises(ValueError, match="finite and above 0"):
        Shape({"w": (torch.tensor([1.0, level]),)})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda f: {n: p for n, p in f.items() if n != "bias"}, "parameters"),
        (lambda f: {**f, "more": (torch.ones(1),)}, "parameters"),
        (lambda f: {**f, "bias": (torch.ones(7),)}, "broadcast"),
        (lambda f: {**f, "bias": (torch.ones(2, 8),)}, "broadcast"),
    ],
)
def test_a_shape_of_another_model_is_refused_with_the_message(change, word: str) -> None:
    wrapped = served(OptimalNoise(0.3), Shape(change(drawn().factors)))
    with pytest.raises(ValueError, match=word):
        mechanism_of(wrapped)


def test_a_new_shape_replaces_the_old_one_and_a_new_model_is_noticed() -> None:
    wrapped = served(OptimalNoise(0.3))
    for seed in (0, 1):
        wrapped.source.use(drawn(seed))
        assert torch.equal(std_of(mechanism_of(wrapped)), std_of(planned(NOISE, drawn(seed))))
    with pytest.raises(ValueError, match="parameters"):
        mechanism_of(wrapped, {"other": torch.ones(3)})


NOISE = OptimalNoise(0.3)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: served(GradientNoise(0.1)), "optimal noise"),
        (lambda: served(GradientPruning(0.5)), "optimal noise"),
        (lambda: served(OptimalNoise(utility_budget=0.1)), "utility_budget"),
        (lambda: served(OptimalNoise(target_error=0.1)), "target_error"),
        (lambda: served(OptimalPruning(utility_budget=0.1)), "utility_budget"),
        (
            lambda: served(OptimalPruning(0.5, noise=OptimalNoise(utility_budget=1.0))),
            "utility_budget",
        ),
        (lambda: FromServer(floor=1.5), "floor"),
        (lambda: FromServer(floor=-0.1), "floor"),
        (lambda: FromServer(cap=0.0), "cap"),
        (lambda: FromServer(cap=float("inf")), "cap"),
    ],
)
def test_arguments_are_checked(make, word: str) -> None:
    with pytest.raises((TypeError, ValueError), match=word):
        make()


def test_its_state_is_the_last_shape() -> None:
    one, other = served(NOISE), served(NOISE)
    assert one.state_dict() == {}
    one.source.use(drawn())
    other.load_state_dict(one.state_dict())
    assert torch.equal(std_of(mechanism_of(one)), std_of(mechanism_of(other)))
    other.load_state_dict({})
    assert other.source.shape is None
    with pytest.raises(ValueError, match="shape"):
        other.load_state_dict({"other": 1})
    one.reset()
    assert one.state_dict() == {}


def test_an_attacker_knows_the_shape() -> None:
    wrapped = served(NOISE, drawn())
    known = wrapped.without_memory()
    assert known is not wrapped
    assert torch.equal(std_of(mechanism_of(known)), std_of(mechanism_of(wrapped)))


def test_it_is_written_and_read_as_text() -> None:
    wrapped = served(OptimalNoise(0.1), floor=0.2)
    assert spec_of(wrapped) == "optimal-noise(scale=0.1, source=from-server(floor=0.2))"
    assert repr(build_defense(spec_of(wrapped))) == repr(wrapped)
    about = wrapped.about
    assert (about.label, about.family, about.twin) == ("optimal noise", "noise", GradientNoise)
    assert (about.source, about.clamp) == ("server", None)
    assert build_defense("optimal-noise(0.1, source='server')").about == about


def test_micro_batches_get_one_draw_of_noise_in_the_servers_shape() -> None:
    model, wrapped = build_model("mlp", sizes=[4, 3, 2]), served(NOISE)
    inputs, targets = torch.ones(4, 4), torch.tensor([0, 1, 0, 1])
    generator = torch.Generator().manual_seed(0)
    with wrapped.accumulate(model, cross_entropy, generator) as step:
        step.add(inputs[:2], targets[:2])
        step.add(inputs[2:], targets[2:])
    whole = GradientMessage(model, cross_entropy, targets).values(inputs)
    noise = row(step.sent) - row(whole)
    assert 0.5 < float(noise.square().mean().sqrt()) / 0.3 < 1.5


def test_clients_with_one_shape_share_a_plan_and_others_do_not() -> None:
    shape = drawn()
    one, two, other = served(NOISE, shape), served(NOISE, shape), served(NOISE, shape, floor=0.3)
    assert mechanism_of(one) is mechanism_of(two)
    assert mechanism_of(one) is not mechanism_of(other)
    narrow = {name: value.float() for name, value in LIKE.items()}
    assert mechanism_of(one, narrow).std["bias"].dtype == torch.float32
    louder = mechanism_of(served(OptimalNoise(0.6), shape))
    torch.testing.assert_close(std_of(louder), 2 * std_of(mechanism_of(one)))

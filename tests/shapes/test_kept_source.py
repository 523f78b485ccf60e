"""`Public` and `ModelSource`: the private batch never enters the mechanism."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import (
    GradientMessage,
    GradientNoise,
    GradientPruning,
    LocalUpdateMessage,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    Public,
)
from gradveil.defenses import Defense
from gradveil.shapes import KeptSource, ModelSource

INNER: list[Defense] = [
    OptimalNoise(0.1),
    OptimalNoise(0.1, granularity="layer"),
    OptimalClampedNoise(0.1, clip=0.01),
    OptimalPruning(0.5),
    OptimalPruning(0.5, noise=OptimalNoise(0.1)),
    GradientPruning(0.5),
    OptimalRounding(0.1),
]
BUDGETS: list[Defense] = [
    OptimalNoise(utility_budget=0.01),
    OptimalNoise(target_error=0.1),
    OptimalPruning(utility_budget=0.001),
]


def generator(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def a_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))


def a_batch(seed: int, count: int = 4, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    draw = generator(seed)
    inputs = scale * torch.randn(count, 6, generator=draw)
    return inputs, torch.randint(3, (count,), generator=draw)


def public(inner: Any, **options: Any) -> Any:
    return replace(inner, source=Public(a_batch(99, 16), **options))


def modelled(inner: Any, **options: Any) -> Any:
    return replace(inner, source=ModelSource(**options))


def kept(defense: Defense) -> KeptSource:
    assert isinstance(defense.source, KeptSource)
    return defense.source


def mechanism_of(defense: Defense, seed: int, model: nn.Module | None = None, **local: Any) -> Any:
    inputs, targets = a_batch(seed, scale=10.0**seed)
    model = model or a_model()
    message = (
        LocalUpdateMessage(model, cross_entropy, targets, **local)
        if local
        else GradientMessage(model, cross_entropy, targets)
    )
    return defense.respond(message, inputs, generator()).mechanism


def tensors_of(mechanism: Any) -> list[Tensor]:
    fields = (getattr(mechanism, name, None) for name in ("std", "keep", "step"))
    return [t for field in fields if isinstance(field, dict) for t in field.values()]


def assert_same(first: Any, second: Any) -> None:
    ones, others = tensors_of(first), tensors_of(second)
    assert ones
    assert all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


WRAPPED = [
    *(pytest.param(lambda d=d: public(d), id=f"public {d!r}") for d in (*INNER, *BUDGETS)),
    *(pytest.param(lambda d=d: modelled(d), id=f"model {d!r}") for d in INNER),
]


@pytest.mark.parametrize("make", WRAPPED)
def test_two_private_batches_have_bitwise_the_same_mechanism(make: Callable[[], Defense]):
    assert not make().about.private
    assert not make().about.varies
    assert_same(mechanism_of(make(), 1), mechanism_of(make(), 2))


@pytest.mark.parametrize("make", [public, modelled])
def test_so_do_two_local_updates(make):
    local = {"lr": 0.1, "steps": 2, "batch_size": 2}
    first, second = (mechanism_of(make(OptimalNoise(0.1)), seed, **local) for seed in (1, 2))
    assert_same(first, second)


@pytest.mark.parametrize("make", [public])
def test_a_plan_is_kept_and_then_made_anew(make):
    defense = make(OptimalNoise(0.1), refresh_every=2)
    models = [a_model(seed) for seed in range(4)]
    plans = [tensors_of(mechanism_of(defense, 1, model))[0] for model in models]
    assert torch.equal(plans[0], plans[1])
    assert not torch.equal(plans[1], plans[2])
    assert torch.equal(plans[2], plans[3])


@pytest.mark.parametrize("make", [public, modelled])
def test_another_model_has_a_plan_of_its_own(make):
    defense = make(OptimalNoise(0.1))
    mechanism_of(defense, 1)
    wider = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 3))
    assert mechanism_of(defense, 1, wider).std["0.weight"].shape == (9, 6)


@pytest.mark.parametrize("make", [public])
def test_a_state_continues_where_it_was_saved(make):
    first, second = (
        make(OptimalNoise(0.1), refresh_every=3),
        make(OptimalNoise(0.1), refresh_every=3),
    )
    assert first.state_dict() == {}
    for seed in range(2):
        mechanism_of(first, 1, a_model(seed))
    second.load_state_dict(first.state_dict())
    for seed in range(2, 5):
        model = a_model(seed)
        assert_same(mechanism_of(first, 1, model), mechanism_of(second, 2, model))
    first.reset()
    assert first.state_dict() == {}


def test_a_state_of_another_defense_is_an_error():
    with pytest.raises(ValueError, match="should have the keys"):
        public(OptimalNoise(0.1)).load_state_dict({"step": 1})


@pytest.mark.parametrize("make", [public, modelled])
def test_micro_batches_have_the_plan_of_all_of_their_examples(make):
    """The same noise as one call with all examples: same plan, same values, same generator."""
    model, (inputs, targets) = a_model(), a_batch(3, 8)
    defense = make(OptimalNoise(0.1))
    with defense.accumulate(model, cross_entropy, generator()) as step:
        for part in (slice(0, 3), slice(3, 8)):
            step.add(inputs[part], targets[part])
    fresh = make(OptimalNoise(0.1))
    message = GradientMessage(model, cross_entropy, targets)
    assert step.sent is not None
    state = defense.state_dict()
    assert make is modelled or state["key"][1] == 8
    assert state["input_size"] == 48
    fresh.respond(message, inputs, generator())
    for name, square in state["squared_values"].items():
        assert square.shape == fresh.state_dict()["squared_values"][name].shape


def test_noise_does_not_depend_on_what_the_plan_draws():
    """The values' own noise is that of isotropic noise from the same generator."""
    inputs, targets = a_batch(1)
    message = GradientMessage(a_model(), cross_entropy, targets)
    done = public(OptimalNoise(0.1)).respond(message, inputs, generator())
    plain = GradientNoise(1.0).respond(message, inputs, generator())
    for name, sent in done.sent.items():
        drawn = (sent - done.values[name]) / done.mechanism.std[name]
        torch.testing.assert_close(
            drawn, plain.sent[name] - plain.values[name], rtol=1e-3, atol=1e-4
        )


def test_public_plans_of_other_examples_differ():
    first = OptimalNoise(0.1, source=Public(a_batch(1, 16)))
    second = OptimalNoise(0.1, source=Public(a_batch(2, 16)))
    one, other = (tensors_of(mechanism_of(d, 1)) for d in (first, second))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_isotropic_noise_inside_is_left_as_it_is():
    mechanism = mechanism_of(public(GradientNoise(0.1)), 1)
    assert all(bool((std == 0.1).all()) for std in mechanism.std.values())


@pytest.mark.parametrize(
    ("examples", "error"),
    [
        (torch.zeros(4, 6), TypeError),
        ((torch.zeros(4, 6), [0, 1, 2, 0]), TypeError),
        ((torch.zeros(4, 6), torch.zeros(3).long()), ValueError),
        ((torch.zeros(0, 6), torch.zeros(0).long()), ValueError),
    ],
)
def test_examples_that_are_none_are_an_error(examples, error):
    with pytest.raises(error, match="Found"):
        Public(examples)


def test_a_message_for_its_own_examples_only_is_an_error():
    with pytest.raises(TypeError, match="method `of"):
        public(OptimalNoise(0.1)).respond(lambda x: {"w": x.sum(0)}, torch.zeros(3, 6))


def test_words():
    about = public(OptimalClampedNoise(0.1, clip=0.5)).about
    assert (about.label, about.source, about.clamp) == (
        "optimal noise with clamping",
        "public",
        0.5,
    )
    assert modelled(OptimalNoise(0.1)).about.source == OptimalNoise(0.1).about.source == "model"


def test_one_source_serves_several_defenses(monkeypatch):
    """As long as they need the same; and each has a mechanism of its own."""
    message, inputs = GradientMessage(a_model(), cross_entropy, a_batch(1)[1]), a_batch(1)[0]
    source = Public(a_batch(99, 16))
    made = []
    original = Public._made
    monkeypatch.setattr(Public, "_made", lambda self, *a: made.append(1) or original(self, *a))
    stds = [
        OptimalNoise(scale, source=source).respond(message, inputs, generator()).mechanism.std
        for scale in (0.1, 0.2)
    ]
    assert len(made) == 1
    for name, std in stds[0].items():
        torch.testing.assert_close(2 * std, stds[1][name])
    OptimalNoise(target_error=0.1, source=source).respond(message, inputs, generator())
    assert len(made) == 2


def test_moments_that_were_measured_once_serve_another_defense(monkeypatch):
    message, inputs = GradientMessage(a_model(), cross_entropy, a_batch(1)[1]), a_batch(1)[0]
    first, second = public(OptimalNoise(0.1)), public(OptimalPruning(0.5), refresh_every=2)
    expected = public(OptimalPruning(0.5)).respond(message, inputs, generator()).mechanism
    first.respond(message, inputs, generator())
    made = []
    monkeypatch.setattr(Public, "_made", lambda self, *given: made.append(self) or 1 / 0)
    kept(second).follow(kept(first))
    for _ in range(2):
        found = second.respond(message, inputs, generator(5)).mechanism
        for name, keep in expected.keep.items():
            assert torch.equal(found.keep[name], keep)
    assert not made
    with pytest.raises(ZeroDivisionError):  # the third call makes its own again
        second.respond(message, inputs, generator())


def test_moments_of_another_model_are_not_taken_over():
    inputs, targets = a_batch(1)
    first, second = public(OptimalNoise(0.1)), public(OptimalNoise(0.1))
    other = nn.Linear(6, 3)
    first.respond(GradientMessage(other, cross_entropy, targets), inputs, generator())
    kept(second).follow(kept(first))
    message = GradientMessage(a_model(), cross_entropy, targets)
    found = second.respond(message, inputs, generator()).mechanism
    expected = public(OptimalNoise(0.1)).respond(message, inputs, generator()).mechanism
    for name, std in expected.std.items():
        assert torch.equal(found.std[name], std)


def test_moments_come_from_a_defense_of_the_same_kind():
    with pytest.raises(TypeError, match="other"):
        Public(a_batch(99, 16)).follow(ModelSource())  # type: ignore[arg-type]

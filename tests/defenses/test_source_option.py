"""What a shape is made from: by default nothing of the private batch; the batch itself by name."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import (
    ClampedNoise,
    FromServer,
    GradientMessage,
    GradientNoise,
    GradientPruning,
    LocalUpdateMessage,
    NoDefense,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    PrivateNoise,
    Rounding,
)
from gradveil.catalog import build_defense, spec_of
from gradveil.defenses import Defense

PLANNING: list[Defense] = [
    OptimalNoise(0.1),
    OptimalNoise(0.1, granularity="layer"),
    OptimalClampedNoise(0.1, clip=0.01),
    OptimalPruning(0.5),
    OptimalPruning(0.5, noise=OptimalNoise(0.1)),
    OptimalRounding(0.1),
    GradientPruning(0.5, source="model"),
    GradientPruning(0.5, noise=OptimalNoise(0.1), source="model"),
]
FIXED: list[Defense] = [NoDefense(), GradientNoise(0.1), ClampedNoise(0.1, clip=1.0), Rounding(0.1)]


def a_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))


def a_batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = 10.0**seed * torch.randn(4, 6, generator=generator)
    return inputs, torch.randint(3, (4,), generator=generator)


def mechanism_of(defense: Defense, seed: int, **local: Any) -> Any:
    inputs, targets = a_batch(seed)
    model = a_model()
    message = (
        LocalUpdateMessage(model, cross_entropy, targets, **local)
        if local
        else GradientMessage(model, cross_entropy, targets)
    )
    return defense.respond(message, inputs, torch.Generator().manual_seed(7)).mechanism


def levels(mechanism: Any) -> list[Tensor]:
    found = []
    for name in ("std", "keep", "clip", "step"):
        level = getattr(mechanism, name, None)
        if level is not None:
            found += [*level.values()] if isinstance(level, dict) else [torch.tensor(level)]
    return found


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(levels(a), levels(b), strict=True))


@pytest.mark.parametrize("defense", [*PLANNING, *FIXED], ids=spec_of)
def test_by_default_the_mechanism_is_the_same_bytes_for_any_private_batch(defense: Defense):
    assert not defense.about.private
    assert not defense.about.varies
    assert same(mechanism_of(defense, 0), mechanism_of(defense, 1))


def test_the_plan_of_an_update_does_not_see_the_batch_either():
    first, second = (mechanism_of(OptimalNoise(0.1), s, lr=0.1, steps=2) for s in (0, 1))
    assert same(first, second)


@pytest.mark.parametrize(
    "defense", [d for d in PLANNING if not isinstance(d, GradientPruning)], ids=spec_of
)
def test_the_private_form_is_asked_for_by_name_and_depends_on_the_batch(defense: Any):
    private = replace(defense, source="private")
    assert private.about.private
    assert private == type(defense)(**{**_options(defense), "source": "private"})
    assert not same(mechanism_of(private, 0), mechanism_of(private, 1))


def test_magnitude_pruning_is_private_by_what_it_is():
    assert GradientPruning(0.5).about.private
    assert not same(mechanism_of(GradientPruning(0.5), 0), mechanism_of(GradientPruning(0.5), 1))


def test_the_option_is_written_as_source():
    private = OptimalNoise(0.1, source="private")
    assert spec_of(private) == "optimal-noise(scale=0.1, source='private')"
    assert build_defense(spec_of(private)) == private
    assert spec_of(OptimalNoise(0.1)) == "optimal-noise(scale=0.1)"


def test_an_unknown_source_is_an_error():
    with pytest.raises(ValueError, match=r"Parameter `source` should be"):
        OptimalNoise(0.1, source="somewhere")
    with pytest.raises(ValueError, match=r"spreads nothing by a shape"):
        GradientNoise(0.1, source="server")
    with pytest.raises(ValueError, match=r"Parameter `target_error` should be left out"):
        OptimalNoise(target_error=0.1, source="server")


@pytest.mark.parametrize("kind", [OptimalNoise, GradientNoise])
@pytest.mark.parametrize("option", ["utility_budget", "target_error"])
def test_amounts_that_need_real_examples_are_refused_for_synthetic_ones(kind: Any, option: str):
    inputs, targets = a_batch(0)
    message = GradientMessage(a_model(), cross_entropy, targets)
    with pytest.raises(ValueError, match=f"Parameter `{option}` should be used with a source that"):
        kind(**{option: 0.1}).respond(message, inputs)
    assert kind(**{option: 0.1}, source="private").respond(message, inputs).sent


@pytest.mark.parametrize("defense", PLANNING, ids=spec_of)
def test_micro_batches_do_not_enter_the_plan(defense: Defense, monkeypatch: pytest.MonkeyPatch):
    planned = []
    original = type(defense).mechanism

    def spied(self: Defense, shape: Any, moments: Any) -> Any:
        planned.append(original(self, shape, moments))
        return planned[-1]

    monkeypatch.setattr(type(defense), "mechanism", spied)
    for seed in (0, 1):
        inputs, targets = a_batch(seed)
        generator = torch.Generator().manual_seed(7)
        with defense.accumulate(a_model(), cross_entropy, generator) as step:
            step.add(inputs[:2], targets[:2])
            step.add(inputs[2:], targets[2:])
    assert len(planned) == 2
    assert same(*planned)


def test_a_message_that_cannot_take_other_targets_is_refused_with_advice():
    with pytest.raises((TypeError, ValueError), match="private"):
        OptimalNoise(0.1).respond(lambda x: {"w": x.sum(0)}, torch.ones(2, 3))


def _options(defense: Any) -> dict[str, Any]:
    names = (field.name for field in fields(defense))
    return {name: getattr(defense, name) for name in names if name != "source"}


@pytest.mark.parametrize(
    ("base", "amount"), [(GradientNoise, "scale"), (Rounding, "step"), (NoDefense, None)]
)
def test_a_step_of_its_own_counts_as_private_for_fixed_defenses_too(base: Any, amount: str | None):
    class Reading(base):  # type: ignore[misc]
        def respond(self, message: Any, inputs: Tensor, generator: Any = None) -> Any:
            return super().respond(message, inputs, generator)

    assert Reading(**({} if base is NoDefense else {amount: 0.1})).about.private


def test_private_noise_is_private_when_it_steps_otherwise():
    class Louder(PrivateNoise):
        def observe(self, message: Any, inputs: Tensor, generator: Any) -> Any:
            return super().observe(message, inputs, generator)

    assert Louder(1.0, 1.0).about.private
    assert not PrivateNoise(1.0, 1.0).about.private
    assert not OptimalNoise(0.1, source=FromServer()).about.private


@pytest.mark.parametrize(
    "noise", [OptimalNoise(target_error=1.0), GradientNoise(utility_budget=0.1)], ids=spec_of
)
def test_noise_on_what_pruning_keeps_needs_a_known_amount_too(noise: Any):
    inputs, targets = a_batch(0)
    message = GradientMessage(a_model(), cross_entropy, targets)
    with pytest.raises(ValueError, match="should be used with a source that sees real examples"):
        OptimalPruning(0.3, noise=noise).respond(message, inputs)


def test_a_step_of_its_own_counts_as_private_until_it_says_otherwise():
    class Own(Defense):
        def observe(self, message: Any, inputs: Tensor, generator: Any) -> Any:
            return super().observe(message, inputs, generator)

    class Public(Own):
        @property
        def about(self) -> Any:
            return replace(super().about, private=False)

    assert Own().about.private
    assert not Public().about.private

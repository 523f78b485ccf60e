"""What a plan is made from: by default nothing of the private batch; the batch itself by name."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import (
    DPSGD,
    Cached,
    FromServer,
    GradientMessage,
    GradientNoise,
    GradientPruning,
    LocalUpdateMessage,
    NoDefense,
    OptimalDPSGD,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    PrivateNoise,
    Released,
    Rounding,
)
from gradveil.catalog import build_defense, spec_of
from gradveil.defenses import Defense

PLANNING: list[Defense] = [
    OptimalNoise(0.1),
    OptimalNoise(0.1, granularity="layer"),
    OptimalDPSGD(0.1, clip=0.01),
    OptimalPruning(0.5),
    OptimalPruning(0.5, noise=OptimalNoise(0.1)),
    OptimalRounding(0.1),
    GradientPruning(0.5, plan="model"),
    GradientPruning(0.5, noise=OptimalNoise(0.1), plan="model"),
]
FIXED: list[Defense] = [NoDefense(), GradientNoise(0.1), DPSGD(0.1, clip=1.0), Rounding(0.1)]


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
    assert not defense.plan_is_private
    assert not defense.plan_varies
    assert same(mechanism_of(defense, 0), mechanism_of(defense, 1))


def test_the_plan_of_an_update_does_not_see_the_batch_either():
    first, second = (mechanism_of(OptimalNoise(0.1), s, lr=0.1, steps=2) for s in (0, 1))
    assert same(first, second)


@pytest.mark.parametrize(
    "defense", [d for d in PLANNING if not isinstance(d, GradientPruning)], ids=spec_of
)
def test_the_private_form_is_asked_for_by_name_and_depends_on_the_batch(defense: Any):
    private = replace(defense, plan_from="private")
    assert private.plan_is_private
    assert private == type(defense)(**{**_options(defense), "plan": "private"})
    assert not same(mechanism_of(private, 0), mechanism_of(private, 1))


def test_magnitude_pruning_is_private_by_what_it_is():
    assert GradientPruning(0.5).plan_is_private
    assert not same(mechanism_of(GradientPruning(0.5), 0), mechanism_of(GradientPruning(0.5), 1))


def test_the_option_is_written_as_plan():
    private = OptimalNoise(0.1, plan="private")
    assert spec_of(private) == "optimal-noise(scale=0.1, plan='private')"
    assert build_defense(spec_of(private)) == private
    assert spec_of(OptimalNoise(0.1)) == "optimal-noise(scale=0.1)"


def test_an_unknown_source_is_an_error():
    with pytest.raises(ValueError, match=r"Parameter `plan` should be"):
        OptimalNoise(0.1, plan="somewhere")
    with pytest.raises(TypeError, match="which mean the same"):
        OptimalNoise(0.1, plan="private", plan_from="private")


@pytest.mark.parametrize("kind", [OptimalNoise, GradientNoise])
@pytest.mark.parametrize("option", ["utility_budget", "target_error"])
def test_amounts_that_need_real_examples_are_refused_for_synthetic_ones(kind: Any, option: str):
    inputs, targets = a_batch(0)
    message = GradientMessage(a_model(), cross_entropy, targets)
    with pytest.raises(ValueError, match=f"Parameter `{option}` should be used with a plan that"):
        kind(**{option: 0.1}).respond(message, inputs)
    assert kind(**{option: 0.1}, plan="private").respond(message, inputs).sent


def test_cached_wants_a_private_plan():
    with pytest.raises(ValueError, match="should plan from the private batch"):
        Cached(OptimalNoise(0.1))
    assert Cached(OptimalNoise(0.1, plan="private")).plan_is_private
    assert not Cached(GradientNoise(0.1)).plan_is_private


@pytest.mark.parametrize("defense", PLANNING, ids=spec_of)
def test_micro_batches_do_not_enter_the_plan(defense: Defense, monkeypatch: pytest.MonkeyPatch):
    planned = []
    original = type(defense).plan

    def spied(self: Defense, moments: Any) -> Any:
        planned.append(original(self, moments))
        return planned[-1]

    monkeypatch.setattr(type(defense), "plan", spied)
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
    return {name: value for name, value in vars(defense).items() if name != "plan_from"}


@pytest.mark.parametrize("base", [GradientNoise, Rounding, NoDefense])
def test_a_step_of_its_own_counts_as_private_for_fixed_defenses_too(base: Any):
    class Reading(base):  # type: ignore[misc]
        def respond(self, message: Any, inputs: Tensor, generator: Any = None) -> Any:
            return super().respond(message, inputs, generator)

    assert Reading(**({} if base is NoDefense else {base.amount_name: 0.1})).plan_is_private


def test_wrappers_and_private_noise_are_private_when_they_step_otherwise():
    class Peeking(Released):
        def observe(self, message: Any, inputs: Tensor, generator: Any) -> Any:
            return super().observe(message, inputs, generator)

    class Louder(PrivateNoise):
        def observe(self, message: Any, inputs: Tensor, generator: Any) -> Any:
            return super().observe(message, inputs, generator)

    assert Peeking(OptimalNoise(0.1)).plan_is_private
    assert not Released(OptimalNoise(0.1)).plan_is_private
    assert Louder(1.0, 1.0).plan_is_private
    assert not PrivateNoise(1.0, 1.0).plan_is_private
    assert not FromServer(OptimalNoise(0.1)).plan_is_private


@pytest.mark.parametrize(
    "noise", [OptimalNoise(target_error=1.0), GradientNoise(utility_budget=0.1)], ids=spec_of
)
def test_noise_on_what_pruning_keeps_needs_a_known_amount_too(noise: Any):
    inputs, targets = a_batch(0)
    message = GradientMessage(a_model(), cross_entropy, targets)
    for defense in (OptimalPruning(0.3, noise=noise), Released(OptimalPruning(0.3, noise=noise))):
        with pytest.raises(ValueError, match="should be used with a plan that sees real examples"):
            defense.respond(message, inputs)


def test_a_step_of_its_own_counts_as_private_until_it_says_otherwise():
    class Own(Defense):
        def observe(self, message: Any, inputs: Tensor, generator: Any) -> Any:
            return super().observe(message, inputs, generator)

    class Public(Own):
        plan_is_private = False

    assert Own().plan_is_private
    assert not Public().plan_is_private

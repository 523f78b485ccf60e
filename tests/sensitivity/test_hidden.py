"""Zero sensitivity is believed only where it is proven."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradveil import GradientMessage, LocalUpdateMessage, OptimalClampedNoise, OptimalNoise, measure
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import HiddenPathWarning
from gradveil.theory import fisher_trace
from tests.hidden_paths import READINGS, Categories, Reading, batch, made, message_of
from tests.zoo import named

each_reading = pytest.mark.parametrize("name", READINGS)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@each_reading
@pytest.mark.parametrize("examples", [1, 4])
def test_entries_that_move_without_a_derivative_count_as_sensitive(
    name: str, examples: int
) -> None:
    message, inputs = message_of(made(lambda: Reading(READINGS[name])), examples), batch(examples)
    with pytest.warns(HiddenPathWarning, match="detach, rounding"):
        moments = measure(message, inputs, generator=seeded())
    assert moments.hidden > 0
    for entry, value in message(inputs).items():
        assert bool((moments.known_squared_sensitivities[entry][value != 0] > 0).all())


@each_reading
@pytest.mark.parametrize(
    "defense",
    [OptimalNoise(0.1, source="private"), OptimalClampedNoise(0.1, source="private")],
    ids=["noise", "clamped-noise"],
)
def test_nothing_of_them_is_sent_bare(name: str, defense: OptimalNoise) -> None:
    message, inputs = message_of(made(lambda: Reading(READINGS[name]))), batch()
    with pytest.warns(HiddenPathWarning):
        moments = defense.observe(message, inputs, seeded())[1]
    std = defense.plan(moments).std
    assert isinstance(std, dict)
    typical = torch.cat([level.flatten() for level in std.values()]).median()
    assert all(float(level.min()) > 0.1 * float(typical) for level in std.values())


@pytest.mark.parametrize("estimator", ["auto", "layers", "exact", "per-example", "sketch"])
def test_a_frozen_backbone_behind_detach(estimator: str) -> None:
    """650 of 650 entries went out bare."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.Tanh())
            self.head = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.head(self.backbone(x).detach())
            return outputs

    model = made(Frozen)
    model.backbone.requires_grad_(False)
    inputs = torch.rand(4, 1, 6, 6, generator=seeded(), dtype=torch.float64)
    message = GradientMessage(model, F.cross_entropy, torch.arange(4))
    with pytest.warns(HiddenPathWarning, match="650 of 650 entries"):
        moments = measure(message, inputs, estimator, generator=seeded())
    mechanism = OptimalNoise(0.1, source="private").plan(moments)
    assert isinstance(mechanism.std, dict)
    assert all(float(std.min()) > 0 for std in mechanism.std.values())
    assert fisher_trace(moments, mechanism) == float("inf")


def test_what_stands_for_the_sensitivity_has_its_size() -> None:
    """Behind `detach`, s² is that of the same model without it."""
    seen, unseen = (made(lambda read=r: Reading(read)) for r in (lambda x: x, READINGS["detach"]))
    inputs = batch(16)
    exact = measure(message_of(seen, 16), inputs, "exact")
    with pytest.warns(HiddenPathWarning):
        found = measure(message_of(unseen, 16), inputs, generator=seeded())
    for name, square in exact.known_squared_sensitivities.items():
        assert 0.05 < float(found.known_squared_sensitivities[name].mean() / square.mean()) < 20


@pytest.mark.parametrize("kind", ["gradient", "update"])
def test_a_target_cannot_be_promised(kind: str) -> None:
    model, inputs, targets = made(lambda: Reading(READINGS["round"])), batch(), torch.arange(4) % 3
    message = (
        GradientMessage(model, F.cross_entropy, targets)
        if kind == "gradient"
        else LocalUpdateMessage(model, F.cross_entropy, targets, lr=0.1, steps=2)
    )
    with (
        pytest.warns(HiddenPathWarning),
        pytest.raises(ValueError, match=r"`target_error`.*no error can be promised"),
    ):
        OptimalNoise(target_error=0.1, source="private")(message, inputs, seeded())


def test_nothing_is_doubted_where_derivatives_see_everything() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HiddenPathWarning)
        for name in ("mlp", "conv_net", "attention", "unused"):
            case = named(name)
            assert measure(case.message(), case.inputs(), generator=seeded()).hidden == 0


def test_what_does_not_depend_on_the_inputs_keeps_0() -> None:
    """A penalty on a weight that meets no input: proven, because other inputs leave it."""

    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.extra = nn.Linear(6, 3), nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.head(x) + 0 * self.extra + self.extra.square().sum()
            return outputs

    message = GradientMessage(made(Penalised), lambda o, _: o.sum(), torch.zeros(4))
    moments = measure(message, batch(), "exact")
    assert moments.hidden == 0
    assert bool((moments.known_squared_sensitivities["extra"] == 0).all())


def test_rows_of_unused_categories_do_not_stand_out() -> None:
    """They were exact zeros: the categories of the batch could be read off."""
    model, inputs = made(Categories), batch(3)
    inputs[:, 5] = torch.tensor([2.0, 7.0, 7.0])
    message = message_of(model, 3)
    values = message(inputs)["embedding.weight"]
    used = values.abs().sum(1) > 0
    assert used.nonzero().flatten().tolist() == [2, 7]
    defense = OptimalNoise(1.0, source="private")
    sent = defense(message, inputs, seeded())["embedding.weight"]
    assert bool((sent != 0).all())
    std = defense.plan(measure(message, inputs, generator=seeded())).std
    assert isinstance(std, dict)
    levels = std["embedding.weight"]
    mean = levels[used].square().mean().sqrt().expand(levels[~used].shape)
    torch.testing.assert_close(levels[~used], mean, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("kind", [OptimalNoise, OptimalClampedNoise])
def test_unused_rows_are_hidden_in_every_step(kind: type) -> None:
    """Rows that no step had used were once sent bare: 41 of 41 were found."""
    model = made(Categories)
    defense, generator = kind(1.0, source="private"), seeded()
    for step in range(8):
        inputs = batch(3)
        inputs[:, 5] = torch.tensor([step % 12, (3 * step) % 12, 7]).double()
        values, mechanism, _ = defense.respond(message_of(model, 3), inputs, generator)
        assert isinstance(mechanism, Mechanism)
        assert isinstance(mechanism.std, dict)
        levels = mechanism.std["embedding.weight"].square().mean(1)
        used = values["embedding.weight"].abs().sum(1) > 0
        ratio = (levels[~used] / levels[used].mean()).sqrt()
        assert 0.5 < float(ratio.min()) <= float(ratio.max()) < 2, step

"""Plans do not depend on the units of inputs, weights and losses."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradveil import GradientMessage, OptimalClampedNoise, OptimalNoise, OptimalPruning, measure
from gradveil.defenses import Defense
from gradveil.mechanisms import Mechanism
from gradveil.messages import in_double
from gradveil.sensitivity import HiddenPathWarning
from gradveil.theory import share_of_optimum

SCALES = [1e-12, 1e-9, 1e-4, 1 / 255, 255.0, 1e4, 1e9, 1e12]
each_scale = pytest.mark.parametrize("scale", SCALES)
DEFENSES = [
    OptimalNoise(0.1, source="private"),
    OptimalPruning(0.5, source="private"),
    OptimalNoise(0.1, granularity="layer", source="private"),
]
each_defense = pytest.mark.parametrize("defense", DEFENSES, ids=["noise", "pruning", "layer"])


class InUnits(nn.Module):
    """A small network on inputs in other units, its weights in other units, too."""

    def __init__(self, inputs: float = 1.0, weights: float = 1.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 3)
        self.inputs, self.weights = inputs, weights
        with torch.no_grad():
            self.first.weight.mul_(weights)
            self.first.bias.mul_(weights)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x / self.inputs) / self.weights)
        outputs: Tensor = self.last(hidden)
        return outputs


def levels(defense: Defense, scale: float, **kinds: float) -> dict[str, Tensor]:
    """What is planned in these units, in float32."""
    units = dict.fromkeys(kinds, scale)
    loss_unit = units.pop("loss", 1.0)
    model = InUnits(**units)
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)) * model.inputs
    message = GradientMessage(
        model, lambda o, y: loss_unit * F.cross_entropy(o, y), torch.arange(5) % 3, separable=True
    )
    mechanism = defense.plan(measure(message, inputs, "exact"))
    found = mechanism.keep if isinstance(defense, OptimalPruning) else mechanism.std
    assert isinstance(found, dict)
    return found


@each_scale
@each_defense
@pytest.mark.parametrize("kind", ["inputs", "loss"])
def test_units_change_nothing(kind: str, scale: float, defense: Defense) -> None:
    plain, scaled = levels(defense, 1.0), levels(defense, scale, **{kind: 1.0})
    for name, level in plain.items():
        torch.testing.assert_close(scaled[name].float(), level, rtol=2e-3, atol=1e-6)


@each_scale
def test_units_of_weights_change_nothing(scale: float) -> None:
    """The gradient of a weight in other units has the inverse units, and so has its sensitivity:
    their ratio is the same."""
    plain, scaled = (
        levels(OptimalNoise(0.1, source="private"), s, weights=1.0) for s in (1.0, scale)
    )
    for name, level in plain.items():
        torch.testing.assert_close(scaled[name].float(), level, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(("inputs", "loss"), [(1e12, 1e-12), (1e-12, 1e12), (1e-12, 1e-12)])
def test_both_at_once(inputs: float, loss: float) -> None:
    """Squares of 1e-52 and 1e44 do not exist in float32."""
    model = InUnits(inputs)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)) * inputs
    message = GradientMessage(
        model, lambda o, y: loss * F.cross_entropy(o, y), torch.arange(5) % 3, separable=True
    )
    moments = measure(message, x, "exact")
    found = OptimalNoise(0.1, source="private").plan(moments).std
    assert isinstance(found, dict)
    for name, level in levels(OptimalNoise(0.1, source="private"), 1.0).items():
        torch.testing.assert_close(found[name].float(), level, rtol=2e-3, atol=1e-6)
    sent = OptimalClampedNoise(0.1, source="private")(message, x, torch.Generator().manual_seed(0))
    assert all(value.dtype == torch.float32 for value in sent.values())


@each_scale
@pytest.mark.parametrize("kind", ["inputs", "weights"])
def test_estimates_are_as_good_in_all_units(kind: str, scale: float) -> None:
    """The share of the optimum that `auto` reaches in float32, judged by float64."""
    model = InUnits(**{kind: scale})
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)) * model.inputs
    targets = torch.arange(5) % 3
    message = GradientMessage(model, F.cross_entropy, targets)
    mechanism = OptimalNoise(0.1, source="private").plan(
        measure(message, inputs, generator=torch.Generator().manual_seed(0))
    )
    exact = measure(in_double(message), inputs.double(), "exact")
    assert isinstance(mechanism.std, dict)
    wide = Mechanism({name: std.double() for name, std in mechanism.std.items()})
    assert share_of_optimum(exact, wide) > 0.9


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Tanh])
@pytest.mark.parametrize("scale", [255.0, 1e4])
def test_pixels_from_0_to_255_leave_nothing_bare(activation: type[nn.Module], scale: float) -> None:
    """Two entries of a saturated model were lost, and the share of the optimum was 0."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, 3))
    inputs = scale * torch.rand(4, 6, generator=torch.Generator().manual_seed(2))
    message = GradientMessage(model, F.cross_entropy, torch.arange(4) % 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HiddenPathWarning)  # saturation is a path of its own
        sent = OptimalNoise(0.1, source="private")(
            message, inputs, torch.Generator().manual_seed(0)
        )
    values = message(inputs)
    assert all(bool((sent[name] != value).all()) for name, value in values.items())

"""Where the assumptions of the bound fail there is no bound, and the reason is said."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradveil import (
    Bound,
    GaussianPrior,
    GradientMessage,
    GradientNoise,
    GradientPruning,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    measure,
    reconstruction_bound,
)
from gradveil.mechanisms import Mechanism
from gradveil.theory import BoundCase, FisherInformation, mean_bound
from tests.hidden_paths import READINGS, Categories, Reading, batch, made, message_of, quantised

each_method = pytest.mark.parametrize("method", ["full", "trace"])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prior() -> GaussianPrior:
    return GaussianPrior(torch.full((6,), 0.5).double(), torch.eye(6).double() / 12)


# ---------------------------------------------------------------- paths that autograd does not see


@pytest.mark.parametrize("name", READINGS)
@each_method
@pytest.mark.parametrize("solver", ["dense", "iterative"])
def test_hidden_paths_have_no_bound(name: str, method: str, solver: str) -> None:
    message = message_of(made(lambda: Reading(READINGS[name])))
    options = {"method": method, "solver": solver, "generator": seeded()}
    bound = reconstruction_bound(message, batch(), Mechanism(1e-6), prior(), **options)
    assert (bound.total, bound.per_entry, bound.holds) == (0.0, 0.0, False)
    assert "no derivative" in bound.reason, bound.reason


def test_a_quantiser_whose_input_can_be_read_off() -> None:
    """The "guarantee" was 0.093 per entry; the input is W⁻¹ y to 1.4e-6."""
    model = made(lambda: Reading(quantised))
    message, inputs = message_of(model, 1), quantised(batch(1))
    sent = Mechanism(1e-6).apply(message(inputs), seeded())
    rebuilt = sent["head.weight"].sum(0) / sent["head.bias"].sum()
    ratio = sent["head.weight"][0] / sent["head.bias"][0]
    assert float((ratio - inputs[0]).abs().max()) < 1e-4, rebuilt
    assert reconstruction_bound(message, inputs, Mechanism(1e-6), prior()).total == 0.0


def test_a_straight_through_estimator_has_no_bound_where_it_steps() -> None:
    """Its derivative is that of another function, which only large steps look like."""

    def through(x: Tensor) -> Tensor:
        return x + (x.round() - x).detach()

    bound = reconstruction_bound(
        message_of(made(lambda: Reading(through))), batch(), Mechanism(1.0)
    )
    assert not bound.holds


def test_categories_have_no_bound() -> None:
    inputs = batch(3)
    inputs[:, 5] = torch.tensor([2.0, 7.0, 7.0])
    bound = reconstruction_bound(message_of(made(Categories), 3), inputs, Mechanism(1.0), prior())
    assert (bound.total, bound.holds) == (0.0, False)


def test_units_that_switch_on_have_no_bound() -> None:
    """A dead unit has no derivative; other inputs wake it."""
    model = made(lambda: nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3)))
    bound = reconstruction_bound(message_of(model), batch(), Mechanism(1.0), prior())
    assert (bound.total, bound.holds) == (0.0, False)


def of_population(
    model: nn.Module, mechanism: Mechanism, count: int = 8, examples: int = 1, **options: Any
) -> Bound:
    """The bound over batches of standard normal numbers, the attacker's prior."""
    normal = GaussianPrior(torch.zeros(6).double(), torch.eye(6).double())
    cases = [
        BoundCase(
            message_of(model, examples),
            torch.randn(examples, 6, generator=seeded(seed), dtype=torch.float64),
            mechanism,
        )
        for seed in range(count)
    ]
    return mean_bound(cases, normal, generator=seeded(), **options)


def perceptron(read: Any = lambda x: x) -> nn.Module:
    """A smooth model behind a reading of the inputs."""

    class Perceptron(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 24), nn.Linear(24, 3)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.last(F.gelu(self.first(read(x))))
            return outputs

    return made(Perceptron)


def one_column(read: Any) -> Any:
    return lambda x: torch.cat([x[:, :5], read(x[:, 5:])], dim=1)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.Softplus])
def test_smooth_models_keep_their_bound(activation: type[nn.Module]) -> None:
    model = made(lambda: nn.Sequential(nn.Linear(6, 40), activation(), nn.Linear(40, 3)))
    for mechanism in (Mechanism(1.0), Mechanism(1e-3)):
        bound = of_population(model, mechanism)
        assert bound.holds, bound.reason
        assert bound.total > 0
        assert bound.explained > 0.95


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.detach(),
        lambda x: (255 * x).round() / 255,
        lambda x: (10 * x).floor() / 10,
        lambda x: (x > 0).to(x.dtype),
        lambda x: 0.5 * x + 0.5 * x.detach(),
    ],
    ids=["detach", "pixels", "tenths", "sign", "half"],
)
def test_one_feature_that_derivatives_do_not_see(read: Any) -> None:
    """The bound was 1.0 in all, that feature's variance; its gradients' ratio is the feature."""
    model = perceptron(one_column(read))
    bound = of_population(model, Mechanism(1e-5))
    assert not bound.holds
    inputs = torch.randn(1, 6, generator=seeded(), dtype=torch.float64)
    sent = Mechanism(1e-7).apply(message_of(model, 1)(inputs), seeded(1))
    unit = int(sent["first.bias"].abs().argmax())
    feature = float(sent["first.weight"][unit, 5] / sent["first.bias"][unit])
    assert feature == pytest.approx(float(one_column(read)(inputs)[0, 5]), abs=1e-3)


def test_a_clip_far_below_the_gradient_sends_its_signs() -> None:
    """Clamped entries have no information of their own, and yet their signs tell nearly all."""
    for clip, std in ((1e-7, 1e-8), (1e-5, 1e-6)):
        bound = of_population(perceptron(), Mechanism(std, clip=clip))
        assert not bound.holds, (clip, bound)
    assert of_population(perceptron(), Mechanism(0.1, clip=10.0)).holds


@pytest.mark.parametrize("features", [1, 6])
def test_a_coarse_grid_with_a_small_slope(features: int) -> None:
    """Most batches are far from a step of the grid; their shares do not outvote the others."""

    def read(x: Tensor) -> Tensor:
        steps = 2 * (x[:, :features] / 2).round() + 1e-3 * x[:, :features]
        return torch.cat([steps, x[:, features:]], dim=1)

    assert not of_population(perceptron(read), Mechanism(0.01)).holds


def test_a_steep_model_needs_more_batches() -> None:
    bound = of_population(perceptron(lambda x: (40 * x).sigmoid()), Mechanism(0.01))
    assert not bound.holds


def test_fewer_than_eight_batches_are_no_guarantee() -> None:
    """J = 4 x² at x | x |: the mean of bounds at single points is 14 times an attacker's error."""
    bounds = [of_population(perceptron(), Mechanism(1.0), count) for count in (1, 7, 8)]
    assert [bound.holds for bound in bounds] == [False, False, True]
    assert all(bound.total > 0 for bound in bounds)
    assert "the mean over 7 of the at least 8 batches" in bounds[1].reason


def test_a_message_that_jumps_says_so() -> None:
    """With slopes on both sides no unit is dead, but the gradient jumps from one to the other."""
    layers = [(6, 50), (50, 50), (50, 50)]
    parts = [part for sizes in layers for part in (nn.Linear(*sizes), nn.LeakyReLU(0.01))]
    model = made(lambda: nn.Sequential(*parts, nn.Linear(50, 3)))
    bound = reconstruction_bound(message_of(model), batch(), Mechanism(1.0), prior())
    assert bound.total > 0
    assert bound.explained < 0.5
    assert not bound.holds
    assert "jumps or hides: derivatives explain" in bound.reason


def test_half_of_a_path_behind_detach_is_noticed() -> None:
    """x + x.detach() has half the derivative, and a bound four times too large."""
    message = message_of(made(lambda: Reading(lambda x: x + x.detach())))
    bound = reconstruction_bound(message, batch(), Mechanism(1.0), prior())
    assert bound.explained == pytest.approx(0.25, abs=0.1)
    assert not bound.holds


# ------------------------------------------------------------------------------- visible patterns


def linear(inputs: Tensor) -> dict[str, Tensor]:
    """The identity: what is sent is the input."""
    return {"w": inputs.reshape(-1)}


def test_the_pattern_of_clamped_entries_alone_goes_below_the_bound() -> None:
    """x ~ N(0, I), y = clamp(x) + noise on what is not clamped: ±P tells the sign and more."""
    inputs = torch.randn(1, 400, generator=seeded(), dtype=torch.float64)
    wide = GaussianPrior(torch.zeros(400).double(), torch.eye(400).double())
    defense = OptimalClampedNoise(5.0, clip=1e-3, least=0.0)
    mechanism = defense.plan(measure(linear, inputs, "exact"))
    sent = mechanism.apply(linear(inputs), seeded(1))["w"]
    guess = (2 / torch.pi) ** 0.5 * sent.sign() * (sent.abs() == 1e-3)
    error = float((guess - inputs[0]).square().mean())
    assumed = reconstruction_bound(linear, inputs, mechanism, wide, public_plan=True)
    assert error < 0.5 < assumed.per_entry
    bound = reconstruction_bound(linear, inputs, mechanism, wide)
    assert (bound.total, bound.holds) == (0.0, False)
    assert "pruned or clamped can be seen" in bound.reason


@each_method
@pytest.mark.parametrize(
    "defense",
    [
        OptimalPruning(0.5, noise=OptimalNoise(0.1)),
        GradientPruning(0.5, noise=GradientNoise(0.1)),
    ],
    ids=["optimal pruning", "pruning"],
)
def test_a_visible_selection_has_a_bound_only_if_it_is_public(
    defense: OptimalNoise, method: str
) -> None:
    model = made(lambda: Reading(torch.tanh))
    mechanism = defense.plan(measure(message_of(model), batch(), "exact"))
    private = of_population(model, mechanism, examples=4, method=method)
    public = of_population(model, mechanism, examples=4, method=method, public_plan=True)
    assert (private.total, private.holds) == (0.0, False)
    assert "can be seen" in private.reason
    assert public.total > 0
    assert "can be seen" not in public.reason


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(0.1, keep=0.5),
        Mechanism(0.1, clip=0.05),
        Mechanism({"w": torch.full((400,), 0.1)}, {"w": torch.arange(400) % 2 * 1.0}),
    ],
    ids=["one probability for all", "noise on clamped entries", "noise on pruned entries"],
)
def test_what_noise_hides_is_not_seen(mechanism: Mechanism) -> None:
    inputs = torch.randn(1, 400, generator=seeded(), dtype=torch.float64)
    wide = GaussianPrior(torch.zeros(400).double(), torch.eye(400).double())
    bound = reconstruction_bound(linear, inputs, mechanism, wide)
    assert "can be seen" not in bound.reason


# ------------------------------------------------------------------------------ more than one batch


def cases(count: int, defense: OptimalNoise | None = None) -> list[BoundCase]:
    model = made(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    made_cases = []
    for seed in range(count):
        inputs = 2 * torch.randn(2, 6, generator=seeded(seed), dtype=torch.float64)
        message = GradientMessage(model, F.cross_entropy, torch.tensor([seed % 3, 1]))
        moments = measure(message, inputs, "exact")
        mechanism = defense.plan(moments) if defense else Mechanism(0.02)
        made_cases.append(BoundCase(message, inputs, mechanism))
    return made_cases


@pytest.mark.parametrize("planned", [False, True])
def test_the_mean_information_is_inside_the_inverse(planned: bool) -> None:
    batches = cases(8, OptimalNoise(0.02) if planned else None)
    mean = torch.stack([FisherInformation(*case).matrix() for case in batches]).mean(0)
    full = mean_bound(batches, prior())
    trace = mean_bound(batches, prior(), "trace")
    known = torch.block_diag(*[prior().precision] * 2)
    assert full.total == pytest.approx(float((mean + known).inverse().trace()), rel=1e-9)
    assert trace.total == pytest.approx(144 / float((mean + known).trace()), rel=1e-9)
    assert (full.batches, trace.batches) == (8, 8)


@pytest.mark.slow
@each_method
def test_single_batches_are_too_large_in_the_mean(method: str) -> None:
    batches = cases(8)
    single = [reconstruction_bound(*case, prior(), method).total for case in batches]
    assert sum(single) / 8 > 1.02 * mean_bound(batches, prior(), method).total


def test_the_iterative_solver_averages_too() -> None:
    batches = cases(3)
    dense = mean_bound(batches, prior())
    found = mean_bound(batches, prior(), solver="iterative", probes=400, generator=seeded())
    assert found.total == pytest.approx(dense.total, rel=0.05)


def test_one_batch_without_a_bound_leaves_none() -> None:
    good, bad = cases(2)
    bare = BoundCase(bad.message, bad.inputs, Mechanism(0.0))
    assert mean_bound([good, bare], prior()).total == 0.0


def test_batches_of_different_shapes_are_refused() -> None:
    one, other = cases(2)
    shorter = BoundCase(message_of(made(lambda: Reading(torch.tanh)), 1), batch(1), Mechanism(1.0))
    with pytest.raises(ValueError, match=r"`cases` should hold batches of one shape.*\(1, 6\)"):
        mean_bound([one, other, shorter])
    with pytest.raises(ValueError, match="`cases` should hold at least one"):
        mean_bound([])

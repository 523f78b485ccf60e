import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import (
    ClampedNoise,
    GaussianPrior,
    GradientNoise,
    GradientPruning,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    Rounding,
    load_dataset,
)
from gradveil.attacks import (
    Adaptive,
    InvertingGradients,
    Observation,
    ThreatModel,
    TotalVariation,
    observe,
)
from gradveil.attacks._descent import message_of
from gradveil.attacks._matching import plan_channel
from gradveil.attacks._refine import Finish
from gradveil.models import build_model
from gradveil.scoring import score

from .tiny import conv_net, error, generator, observed, smooth_images

UNAWARE = InvertingGradients.strong(steps=50, restarts=1)


def adaptive(**changes):
    few = Finish(steps=4, products=20, widths=())
    return Adaptive(UNAWARE, **{"finish": few, "prior": TotalVariation(0.5), **changes})


DEFENSES = [
    GradientPruning(0.7),
    pytest.param(OptimalPruning(0.7), marks=pytest.mark.slow),
    Rounding(0.02),
    pytest.param(OptimalRounding(0.02), marks=pytest.mark.slow),
    pytest.param(GradientNoise(0.01), marks=pytest.mark.slow),
    OptimalNoise(0.01),
    ClampedNoise(0.01, clip=0.2),
]
"""One of each kind of mechanism; their twins with the slow ones."""


@pytest.mark.parametrize("defense", DEFENSES, ids=lambda d: type(d).__name__)
def test_it_runs_against_every_defense_and_is_not_worse(defense):
    truth = smooth_images(2, 1, (6, 6))
    observation = observed(conv_net(1, (6, 6)), truth, [0, 1], defense, mechanism="known")
    unaware = error(UNAWARE(observation, generator()).inputs, truth)
    aware = error(adaptive()(observation, generator()).inputs, truth)
    assert aware < unaware + 0.01


@pytest.mark.slow
def test_against_pruning_it_is_much_better():
    truth = smooth_images(2, 1, (6, 6))
    observation = observed(
        conv_net(1, (6, 6)), truth, [0, 1], GradientPruning(0.6), mechanism="known"
    )
    unaware = error(UNAWARE(observation, generator()).inputs, truth)
    aware = error(adaptive()(observation, generator()).inputs, truth)
    assert aware < 0.3 * unaware


@pytest.mark.slow
def test_the_realised_plan_is_used_where_it_is_granted():
    truth = smooth_images(2, 1, (6, 6))
    model = conv_net(1, (6, 6))
    for defense in (OptimalNoise(0.05), OptimalPruning(0.6)):
        observation = observed(model, truth, [0, 1], defense, mechanism="realised")
        assert observation.mechanism is not None
        assert torch.isfinite(adaptive()(observation, generator()).inputs).all()


def test_without_knowledge_it_says_what_it_needs():
    observation = observed(conv_net(1, (6, 6)), smooth_images(1, 1, (6, 6)), [0])
    with pytest.raises(ValueError, match="ThreatModel"):
        adaptive()(observation)


def test_a_time_budget_is_said():
    observation = observed(
        conv_net(1, (6, 6)), smooth_images(1, 1, (6, 6)), [0], GradientNoise(0.1), mechanism="known"
    )
    assert adaptive(time_budget=0.0)(observation).status == "time budget"


@pytest.mark.slow
def test_pruning_with_noise_is_censored_too():
    """A pruned entry is below what half of the kept ones exceed, whatever the noise."""
    truth = smooth_images(2, 1, (6, 6))
    defense = GradientPruning(0.6, noise=GradientNoise(0.002))
    observation = observed(conv_net(1, (6, 6)), truth, [0, 1], defense, mechanism="known")
    labels = torch.tensor([0, 1])
    channel = plan_channel(observation, labels, truth, generator())
    values, pruned = message_of(observation, labels)(truth), channel.sent == 0
    assert not bool(channel.silent.any())
    assert bool((values[pruned].abs() <= channel.high[pruned] + 1e-6).all())
    assert float(channel.high[pruned].max()) < float(values.abs().max())
    unaware = error(UNAWARE(observation, generator()).inputs, truth)
    assert error(adaptive()(observation, generator()).inputs, truth) < unaware


@pytest.mark.slow
def test_where_nothing_is_hidden_the_unaware_solution_stays():
    truth = smooth_images(2, 1, (6, 6))
    observation = observed(conv_net(1, (6, 6)), truth, [0, 1], mechanism="known")
    peeling = InvertingGradients.strong(steps=300)
    found = Adaptive(peeling)(observation, generator())
    assert torch.equal(found.inputs, peeling(observation, generator()).inputs)
    assert error(found.inputs, truth) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "defense",
    [GradientPruning(0.9), OptimalPruning(0.9), GradientNoise(0.02), OptimalNoise(0.02)],
    ids=lambda d: type(d).__name__,
)
def test_on_the_papers_cnn_it_is_better_than_the_unaware_attack(defense):
    data, starts = load_dataset("mnist"), (1000, 1100, 1200)
    batches = [data.batch(start, 4) for start in starts]
    model = build_model("simple-conv-net", seed=0).eval()
    observations = [
        observe(
            model, cross_entropy, batch, defense, threat=ThreatModel(mechanism="known"),
            num_classes=10, input_range=data.range, generator=generator(start),
        )
        for start, batch in zip(starts, batches, strict=True)
    ]  # fmt: skip
    unaware = InvertingGradients(steps=250, total_variation=1e-2)
    attacks = {"unaware": unaware, "adaptive": Adaptive(unaware, finish=None)}
    means = {}
    for name, attack in attacks.items():
        found = zip((attack(o, generator()) for o in observations), batches, strict=True)
        scores = [score(r, b, normalization=data, ssim=False).psnr.mean() for r, b in found]
        means[name] = float(torch.stack(scores).mean())
    assert means["adaptive"] > means["unaware"]


class Affine(nn.Module):
    """Outputs W x + b with only b trained: the gradient of a squared loss is affine in x."""

    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.bias = nn.Parameter(torch.zeros(len(matrix), dtype=matrix.dtype))

    def forward(self, inputs):
        return inputs.flatten(1) @ self.matrix.T + self.bias


def half_square(outputs, targets):
    return 0.5 * outputs.square().sum()


@pytest.mark.slow
def test_linear_and_gaussian_it_meets_the_posterior_s_error(monkeypatch):
    """x ~ N(μ, C), y = W x + noise: the error of the MAP is tr (WᵀW/σ² + C⁻¹)⁻¹ in the mean."""
    n, std, draws = 5, 0.7, 30
    matrix = torch.randn(4, n, generator=generator(), dtype=torch.float64)
    factor = torch.randn(n, n, generator=generator(1), dtype=torch.float64)
    prior = GaussianPrior(
        torch.ones(n, dtype=torch.float64), factor @ factor.T / n + 0.1 * torch.eye(n).double()
    )
    posterior = torch.linalg.inv(matrix.T @ matrix / std**2 + prior.precision)
    truth = prior.sample(draws, generator(2))
    noise = std * torch.randn(draws, 4, generator=generator(3), dtype=torch.float64)
    quick = InvertingGradients(steps=1)
    attack = Adaptive(quick, prior)
    for name, value in (("LOOSENESS", 1e-9), ("WRONG", 2e-9)):
        monkeypatch.setattr(f"gradveil.attacks._adaptive.{name}", value)
    errors, gaps = [], []
    for x, e in zip(truth, noise, strict=True):
        observation = Observation(
            model=Affine(matrix),
            loss_fn=half_square,
            sent={"bias": matrix @ x + e},
            batch_size=1,
            input_shape=(n,),
            num_classes=1,
            labels=torch.zeros(1, dtype=torch.int64),
            defense=GradientNoise(std),
        )
        found = attack(observation, generator(4)).inputs[0]
        mean = prior.mean + posterior @ matrix.T @ (matrix @ (x - prior.mean) + e) / std**2
        gaps.append(float((found - mean).abs().max()))
        errors.append(float((found - x).square().sum()))
    assert max(gaps) < 1e-4  # the MAP is the posterior mean ...
    spread = torch.tensor(errors).std() / len(errors) ** 0.5
    bound = float(posterior.trace())  # ... whose error is the bound
    assert abs(sum(errors) / len(errors) - bound) < 3 * float(spread)

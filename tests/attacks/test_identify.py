"""The exact attacker against closed forms."""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradveil import (
    ClampedNoise,
    GradientNoise,
    GradientPruning,
    NoDefense,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    Rounding,
)
from gradveil.attacks import Identify, Observation, ThreatModel, observe
from gradveil.attacks._identify import Identification
from gradveil.defenses import Defense
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Exact, Moments
from gradveil.shapes import Needs, Shape
from tests.attacks.likelihood import log_likelihood
from tests.attacks.tiny import generator

DRAWS = 1000
KNOWN = ThreatModel(mechanism="known")


def linear(entries: int) -> nn.Module:
    """Its gradient is the input itself, if the loss is the sum of its outputs."""
    return nn.Linear(entries, 1, bias=False).double()


def total(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum()


def seen(example: Tensor, defense: Defense) -> Observation:
    """One example sent by the linear model."""
    batch = example.unsqueeze(0), torch.zeros(1, dtype=torch.int64)
    return observe(
        linear(len(example)), total, batch, defense, threat=KNOWN, num_classes=2,
        generator=generator(),
    )  # fmt: skip


@dataclass(frozen=True)
class Fixed(Defense):
    """One mechanism for all messages."""

    known: Mechanism

    @property
    def needs(self) -> Needs:
        return Needs(moments=False, sensitivities=False)

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        return self.known


def rate(images: Tensor, defense: Defense) -> float:
    """How often the right one of two candidates is found."""
    attack = Identify((images, torch.zeros(2, dtype=torch.int64)))
    draws, right = generator(1), 0
    for truth in (0, 1):
        first = seen(images[truth], defense)
        step = defense.respond(first.message(torch.zeros(1)), images[truth : truth + 1])
        assert step.mechanism is not None
        apply, own = step.mechanism.apply, {"weight": images[truth : truth + 1]}
        sent = (apply(own, draws) for _ in range(DRAWS))
        found = attack.many([replace(first, sent=one) for one in sent], generator(2))
        right += sum(one.best == truth for one in found)
    return right / (2 * DRAWS)


def phi(distance: float) -> float:
    return NormalDist().cdf(distance / 2)


PAIR = torch.tensor([[0.3, -1.0, 0.2], [0.5, 0.1, 0.2]], dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_two_candidates_and_isotropic_noise(scale: float) -> None:
    expected = phi(float((PAIR[1] - PAIR[0]).norm()) / scale)
    assert rate(PAIR, GradientNoise(scale)) == pytest.approx(expected, abs=0.03)


def test_a_public_plan_gives_the_rate_of_its_own_shift() -> None:
    std = torch.tensor([[0.2, 3.0, 1.0]], dtype=torch.float64)
    expected = phi(float(((PAIR[1] - PAIR[0]) / std).norm()))
    unweighted = phi(float((PAIR[1] - PAIR[0]).norm() / std.square().mean().sqrt()))
    assert abs(expected - unweighted) > 0.08  # another plan would be found out
    found = rate(PAIR, Fixed(Mechanism({"weight": std})))
    assert found == pytest.approx(expected, abs=0.03)


def test_clamped_candidates_differ_in_what_is_left() -> None:
    expected = phi(float((PAIR.clamp(-0.25, 0.25)[1] - PAIR.clamp(-0.25, 0.25)[0]).norm()) / 0.2)
    assert rate(PAIR, ClampedNoise(0.2, clip=0.25)) == pytest.approx(expected, abs=0.03)


class Louder(Defense):
    """Noise as large as the message: planned from the private batch."""

    source = "private"
    needs = Needs(sensitivities=False)

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        return Mechanism(
            {n: s.sum().sqrt().expand(s.shape) for n, s in moments.squared_values.items()}
        )


def test_levels_that_depend_on_the_candidate_count_by_their_determinant() -> None:
    """χ² of 40 entries at levels 1 and 1.5; without log Σ_k the larger level always wins."""
    images = torch.zeros(2, 40, dtype=torch.float64)
    images[0, 0], images[1, 0] = 1.0, 1.5
    draws = generator(3).manual_seed(3)
    y = torch.randn(20_000, 40, generator=draws, dtype=torch.float64)
    right = 0.0
    for truth, own in enumerate((1.0, 1.5)):
        sent = images[truth] + own * y
        scores = torch.stack(
            [
                -0.5 * ((sent - g) / s).square().sum(1) - 40 * math.log(s)
                for g, s in zip(images, (1.0, 1.5), strict=True)
            ]
        )
        right += float((scores.argmax(0) == truth).double().mean()) / 2
    assert right > 0.9
    assert rate(images, Louder()) == pytest.approx(right, abs=0.03)


@pytest.mark.parametrize("rest", [0, 2])
def test_a_private_plan_is_counted_as_the_formula_says(rest: int) -> None:
    """With exact sensitivities, log p_k = -½ Σ ((y - g_k)²/Σ_k + log Σ_k) up to a constant."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    draws = generator()
    images = torch.randn(5 + rest, 3, generator=draws, dtype=torch.float64)
    labels = torch.zeros(5 + rest, dtype=torch.int64)
    defense = OptimalNoise(2.0, estimator=Exact(), source="private")
    known = (images[5:], labels[5:]) if rest else None
    batch = torch.cat([images[1:2], images[5:]]), labels[: 1 + rest]
    observation = observe(
        model, F.cross_entropy, batch, defense, threat=KNOWN, num_classes=2, generator=draws
    )
    found = Identify((images[:5], labels[:5]), known)(observation, draws).log_likelihoods
    expected = []
    for image in images[:5]:
        inputs = torch.cat([image.unsqueeze(0), images[5:]])
        values, mechanism, _ = defense.respond(observation.message(batch[1]), inputs, draws)
        assert isinstance(mechanism, Mechanism)
        assert isinstance(mechanism.std, dict)
        terms = [
            ((observation.sent[n] - values[n]) / s).square() + s.square().log()
            for n, s in mechanism.std.items()
        ]
        expected.append(-0.5 * sum(float(term.sum()) for term in terms))
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found - found[0], wanted - wanted[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("y", [-1.0, 0.2, 1.7])
def test_the_posterior_of_a_linear_gaussian_case(y: float) -> None:
    """Candidates are 500 quantiles of N(0, 1): the posterior is N(y/(1 + σ²), σ²/(1 + σ²))."""
    scale, count = 0.6, 500
    quantiles = [NormalDist().inv_cdf((k + 0.5) / count) for k in range(count)]
    images = torch.tensor(quantiles, dtype=torch.float64).unsqueeze(1)
    observation = replace(
        seen(images[0], GradientNoise(scale)), sent={"weight": torch.tensor([[y]]).double()}
    )
    found = Identify((images, torch.zeros(count, dtype=torch.int64)))(observation)
    assert float(found.mean) == pytest.approx(y / (1 + scale**2), abs=5e-3)
    second = float((found.posterior * images[:, 0].square()).sum()) - float(found.mean) ** 2
    assert second == pytest.approx(scale**2 / (1 + scale**2), rel=2e-2)
    evidence = NormalDist(0, math.sqrt(1 + scale**2)).pdf(y)
    told = [NormalDist(x, scale).pdf(y) for x in quantiles]
    bits = sum(p * math.log2(p / evidence) for p in told) / count / evidence
    assert found.bits == pytest.approx(bits, abs=1e-2)


DEFENSES: dict[str, Defense] = {
    "nothing": NoDefense(),
    "pruning": GradientPruning(0.7),
    "noisy pruning": GradientPruning(0.7, noise=GradientNoise(0.01)),
    "optimal pruning": OptimalPruning(0.7, source="private"),
    "optimal noisy pruning": OptimalPruning(
        0.7, noise=OptimalNoise(0.01, source="private"), source="private"
    ),
    "rounding": Rounding(0.05),
    "optimal rounding": OptimalRounding(0.05, source="private"),
    "optimal noise": OptimalNoise(0.01, source="private"),
    "the paper's optimal noise": OptimalNoise(0.01, least=0.0, source="private"),
    "optimal noise from the model": OptimalNoise(0.01),
    "optimal pruning from the model": OptimalPruning(0.7),
    "optimal noisy pruning from the model": OptimalPruning(0.7, noise=OptimalNoise(0.01)),
    "optimal rounding from the model": OptimalRounding(0.05),
    "one level per layer": OptimalNoise(0.01, granularity="layer", source="private"),
}


def images_and_model() -> tuple[Tensor, Tensor, nn.Module]:
    draws = generator(4)
    images = torch.randn(12, 6, generator=draws)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return images, torch.tensor([0, 1, 2]).repeat(4), model


@pytest.mark.parametrize("name", DEFENSES)
def test_weak_defenses_show_who_it_was(name: str) -> None:
    images, targets, model = images_and_model()
    for truth in (0, 4):
        batch = torch.cat([images[truth : truth + 1], images[10:]])
        classes = torch.cat([targets[truth : truth + 1], targets[10:]])
        observation = observe(
            model, F.cross_entropy, (batch, classes), DEFENSES[name], threat=KNOWN, num_classes=3,
            generator=generator(truth),
        )  # fmt: skip
        attack = Identify((images[:10], targets[:10]), (images[10:], targets[10:]))
        found = attack(observation, generator(9))
        untold = attack(replace(observation, mechanism=None), generator(9))
        assert found.best == untold.best == truth
        assert found.rank(truth) == 1
        assert float(found.posterior.sum()) == pytest.approx(1)


def test_a_truth_that_is_no_candidate_leaves_its_nearest_one() -> None:
    """Without noise all candidates are impossible, and still the posterior is one."""
    images = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 5.0]], dtype=torch.float64)
    observation = seen(torch.tensor([0.9, 0.1], dtype=torch.float64), NoDefense())
    found = Identify((images, torch.zeros(3, dtype=torch.int64)))(observation)
    assert float(found.posterior.sum()) == pytest.approx(1)
    assert found.best == 1
    assert 0 <= found.bits <= math.log2(3)


def test_a_realised_mechanism_is_taken_as_it_is() -> None:
    """Its levels are those of the message; candidates are compared in its own channel."""
    images, targets, model = images_and_model()
    observation = observe(
        model, F.cross_entropy, (images[:1], targets[:1]), OptimalNoise(0.1, source="private"),
        threat=ThreatModel(mechanism="realised"), num_classes=3, generator=generator(),
    )  # fmt: skip
    found = Identify((images[:5], targets[:5]))(observation).log_likelihoods
    assert observation.mechanism is not None
    for index in range(5):
        values = observation.message(targets[index : index + 1])(images[index : index + 1])
        own = log_likelihood(observation.mechanism, values, observation.sent)  # type: ignore[attr-defined]
        assert float(found[index]) == pytest.approx(float(own), rel=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    images, targets, model = images_and_model()
    observation = observe(
        model, F.cross_entropy, (images[:2], targets[:2]), NoDefense(), threat=KNOWN, num_classes=3
    )
    with pytest.raises(ValueError, match="should fit the observation"):
        Identify((images, targets))(observation)
    with pytest.raises(ValueError, match="for each of the 12 inputs"):
        Identify((images, targets[:2]))
    untold = replace(observation, defense=None, mechanism=None)
    with pytest.raises(ValueError, match="should tell the defense"):
        Identify((images[1:], targets[1:]), (images[:1], targets[:1]))(untold)


def test_no_observations_are_no_results() -> None:
    images, targets, _ = images_and_model()
    assert Identify((images, targets)).many([]) == []


def test_the_posterior_of_known_likelihoods() -> None:
    likelihoods = torch.tensor([0.0, math.log(3.0)])
    found = Identification(likelihoods, torch.tensor([[0.0], [1.0]]))
    torch.testing.assert_close(found.posterior, torch.tensor([0.25, 0.75]))
    assert (found.best, found.rank(0), found.rank(1)) == (1, 2.0, 1.0)
    torch.testing.assert_close(found.mean, torch.tensor([0.75]))
    tokens = Identification(torch.zeros(2), torch.tensor([[1, 2], [1, 3]]))
    assert tokens.error(torch.tensor([1, 3])) == 0.25
    assert tokens.rank(0) == tokens.rank(1) == 1.5

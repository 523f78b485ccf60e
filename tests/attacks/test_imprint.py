import pytest
import torch
from torch import nn

from gradveil import GradientNoise, NoDefense, PrivateNoise
from gradveil.attacks import Imprint, ThreatModel, observe
from gradveil.scoring import score

from .small import LOSS, RANGE, seeded, smooth_images

SHAPE = (1, 6, 6)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, 10))


def images(count, seed):
    """Examples of different brightness."""
    inputs, labels = smooth_images(count, *SHAPE, seed=seed)
    return inputs * torch.linspace(0.3, 1.0, count).view(-1, 1, 1, 1), labels


def observed(attack: Imprint, defense):
    """Three examples behind a planted layer, and those."""
    planted = attack.plant(small_model(), images(200, 7)[0])
    inputs, labels = (part[1:] for part in images(4, 3))
    threat = ThreatModel(server="malicious")
    observation = observe(
        planted, LOSS, (inputs, labels), defense, threat=threat, num_classes=10,
        input_range=RANGE, generator=seeded(),
    )  # fmt: skip
    return observation, (inputs, labels)


def error(attack: Imprint, defense) -> torch.Tensor:
    observation, batch = observed(attack, defense)
    return score(attack(observation, seeded()), batch, ssim=False).mse


def test_examples_in_bins_of_their_own_come_back_exactly():
    assert float(error(Imprint(400), NoDefense()).max()) < 1e-6


def test_the_rows_hold_the_sums_of_the_docstring():
    observation, (inputs, labels) = observed(Imprint(5), NoDefense())
    layer = observation.model.imprint
    weight, bias = torch.zeros(5, 36), torch.zeros(5)
    for x, label in zip(inputs, labels, strict=True):
        alone = observation.plain_message(label[None])(x[None])
        active = x.flatten() @ layer.weight[0] > -layer.bias
        delta = alone["imprint.bias"].sum() / active.sum()
        torch.testing.assert_close(alone["imprint.bias"], delta * active)
        weight += torch.outer(delta * active, x.flatten()) / len(inputs)
        bias += delta * active / len(inputs)
    torch.testing.assert_close(observation.sent["imprint.weight"], weight)
    torch.testing.assert_close(observation.sent["imprint.bias"], bias)


def test_amplified_gradients_make_noise_useless_and_leave_the_outputs():
    inputs = smooth_images(3, *SHAPE)[0]
    public = images(200, 7)[0]
    plain, loud = (Imprint(50, a).plant(small_model(), public) for a in (1.0, 1e6))
    torch.testing.assert_close(plain(inputs), loud(inputs))
    noise = GradientNoise(0.1)
    assert float(error(Imprint(400), noise).mean()) > 0.03
    assert float(error(Imprint(400, 1e6), noise).mean()) < 1e-4


def test_clipping_holds_against_any_amplification():
    for amplify in (1.0, 1e6):
        assert float(error(Imprint(400, amplify), PrivateNoise(1.0, 1.0)).mean()) > 0.03


def test_a_server_that_plays_by_the_rules_is_refused():
    attack = Imprint(8)
    observation, batch = observed(attack, NoDefense())
    honest = observe(observation.model, LOSS, batch, NoDefense(), num_classes=10)
    with pytest.raises(ValueError, match=r"ThreatModel\(server='malicious'\)"):
        attack(honest)
    with pytest.raises(ValueError, match="`server` should be one of"):
        ThreatModel(server="rude")

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradveil import GradientNoise, GradientPruning, NoDefense, OptimalNoise, load_dataset
from gradveil.attacks import ThreatModel, observe, recover_labels
from gradveil.defenses import Defense
from gradveil.messages import LocalSteps
from gradveil.models import build_model
from tests.models.le_net import le_net

from .small import LOSS, observed, seeded, smooth_images


def small_net(bias: bool = True, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 13 * 13, 32),
            nn.ReLU(), nn.Linear(32, 10, bias=bias),
        ).eval()  # fmt: skip


def share_right(found: Tensor, truth: Tensor) -> float:
    both = [torch.bincount(labels, minlength=10) for labels in (found, truth)]
    return float(torch.minimum(*both).sum()) / len(truth)


def mean_accuracy(model: nn.Module, size: int, defense: Defense, batches: int = 10) -> float:
    data = load_dataset("mnist", limit=size * batches)
    total = 0.0
    for number in range(batches):
        batch = data.batch(number * size, size)
        found = observe(
            model, LOSS, batch, defense, threat=ThreatModel(labels="unknown"), num_classes=10,
            input_range=data.range, generator=seeded(number),
        )  # fmt: skip
        total += share_right(recover_labels(found, seeded(number)), batch[1])
    return total / batches


@pytest.mark.parametrize("bias", [True, False])
def test_one_image_100_of_100(bias: bool) -> None:
    assert mean_accuracy(small_net(bias), 1, NoDefense(), batches=100) == 1.0


def test_one_image_through_signed_features_100_of_100() -> None:
    model = build_model("mlp", sizes=[784, 32, 10])  # tanh
    assert mean_accuracy(model, 1, NoDefense(), batches=100) == 1.0


def blind_accuracy(size: int, batches: int = 10) -> float:
    """What a guess without looking finds, its labels spread evenly: far above 1 / classes."""
    targets = load_dataset("mnist", limit=size * batches).targets.split(size)
    return sum(share_right(torch.arange(size) % 10, truth) for truth in targets) / batches


@pytest.mark.parametrize(
    ("defense", "gain", "gain_without_bias"),
    [
        (NoDefense(), 0.35, 0.25),
        (GradientNoise(0.01), 0.35, 0.25),
        (GradientNoise(0.1), 0.15, 0.05),
        (GradientPruning(0.9), 0.35, 0.25),
        (GradientPruning(0.97), 0.35, 0.1),
        (OptimalNoise(0.01), 0.35, 0.25),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Defense) else str(value),
)
def test_batches_under_noise_and_pruning(
    defense: Defense, gain: float, gain_without_bias: float
) -> None:
    blind = blind_accuracy(8)
    assert mean_accuracy(small_net(), 8, defense) >= blind + gain
    assert mean_accuracy(small_net(bias=False), 8, defense) >= blind + gain_without_bias


def test_large_batches_in_strong_noise_are_not_worse_than_a_blind_guess() -> None:
    assert mean_accuracy(small_net(), 64, GradientNoise(0.3), 6) >= blind_accuracy(64, 6) - 0.03


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """The small net after some steps on other images than the tests'."""
    model, data = small_net(), load_dataset("mnist", limit=1500)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(60):
        inputs, targets = data.batch(500 + 16 * step, 16)
        optimiser.zero_grad()
        LOSS(model(inputs), targets).backward()
        optimiser.step()
    return model


@pytest.mark.parametrize(
    "defense",
    [NoDefense(), GradientNoise(0.01), GradientPruning(0.9)],
    ids=lambda value: type(value).__name__,
)
def test_trained_models_are_read_better_than_by_a_blind_guess(
    trained: nn.Module, defense: Defense
) -> None:
    assert mean_accuracy(trained, 16, defense, 12) > blind_accuracy(16, 12) + 0.03


def test_fedavg_updates() -> None:
    data = load_dataset("mnist", limit=64)
    for number, local in enumerate([LocalSteps(0.05, 1), LocalSteps(0.05, 4, 4, momentum=0.5)]):
        batch = data.batch(16 * number, 16)
        found = observe(
            small_net(), LOSS, batch, NoDefense(), threat=ThreatModel(labels="unknown"),
            num_classes=10, local=local, input_range=data.range,
        )  # fmt: skip
        assert share_right(recover_labels(found, seeded()), batch[1]) >= 0.9


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_either_reduction_of_the_loss(reduction: str) -> None:
    batch = load_dataset("mnist", limit=16).batch(0, 16)
    loss: Callable[..., Tensor] = nn.CrossEntropyLoss(reduction=reduction)
    threat = ThreatModel(labels="unknown")
    found = observe(small_net(), loss, batch, NoDefense(), threat=threat, num_classes=10)
    assert share_right(recover_labels(found, seeded()), batch[1]) >= 0.9


def test_all_labels_the_same() -> None:
    batch = load_dataset("mnist", limit=6).inputs, torch.full((6,), 3)
    assert recover_labels(observed(small_net(), batch), seeded()).tolist() == [3] * 6


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 12, 20), torch.float64), ((1, 9, 9), torch.float32)]
)
def test_colour_non_square_and_double(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    model = le_net(input_shape=shape, scale=0.1).to(dtype)
    batch = smooth_images(4, *shape, dtype=dtype)
    found = recover_labels(observed(model, batch), seeded())
    assert found.tolist() == batch[1].sort().values.tolist()


def test_what_is_granted_is_used() -> None:
    batch = smooth_images(5, 1, 28, 28)
    known = recover_labels(observed(small_net(), batch, labels="known"))
    counted = recover_labels(observed(small_net(), batch, labels="counts"))
    assert known.tolist() == batch[1].tolist()
    assert counted.tolist() == batch[1].sort().values.tolist()


def test_the_model_keeps_no_hooks_and_the_global_generator_its_state() -> None:
    model, before = small_net(), torch.get_rng_state()
    recover_labels(observed(model, smooth_images(2, 1, 28, 28)))
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), before)


def test_models_without_a_last_linear_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 10, 28), nn.Flatten())
    with pytest.raises(ValueError, match=r"should end in a trainable `nn\.Linear` with 10 outputs"):
        recover_labels(observed(model, smooth_images(2, 1, 28, 28)))

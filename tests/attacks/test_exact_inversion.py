"""Batches come back exactly through a fully connected ReLU layer, or not at all."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradveil import GradientNoise, GradientPruning, NoDefense, load_dataset
from gradveil.attacks import ExactInversion, InvertingGradients, ThreatModel, Watch, observe
from gradveil.attacks._targets import Run
from gradveil.catalog import build_attack
from gradveil.messages import LocalSteps
from gradveil.models import build_model
from gradveil.scoring import score
from tests.attacks.small import LOSS, observed, seeded

EXACT = 100.0


def perceptron(*sizes: int, activation: str = "relu", seed: int = 0) -> nn.Module:
    return build_model("mlp", seed=seed, sizes=list(sizes), activation=activation)


def drawn(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images of independent pixels: no two are alike."""
    images = torch.rand(count, 1, 8, 8, generator=seeded(seed))
    return images, torch.randint(10, (count,), generator=seeded(seed + 1))


def assert_exact(found, batch, least: float = EXACT) -> None:
    assert found.status == "finished"
    assert float(score(found, batch, ssim=False).psnr.min()) > least


@pytest.mark.parametrize("labels", ["known", "counts", "unknown"])
@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1, (64, 32, 10)), (2, (64, 32, 10)), (4, (64, 60, 10)), (8, (64, 60, 20, 10))],
    ids=str,
)
def test_all_inputs_and_labels_come_back(count, sizes, labels):
    batch = drawn(count)
    found = ExactInversion()(observed(perceptron(*sizes), batch, labels=labels), seeded())
    assert_exact(found, batch)
    assert found.loss < 1e-9
    assert found.targets.sort()[0].tolist() == batch[1].sort()[0].tolist()


def test_granted_labels_are_in_the_clients_order():
    batch = drawn(6)
    found = ExactInversion()(observed(perceptron(64, 60, 10), batch, labels="known"), seeded())
    assert torch.equal(found.targets, batch[1])
    places = torch.cdist(batch[0].flatten(1), found.inputs.flatten(1)).argmin(dim=1)
    assert torch.equal(found.targets[places], batch[1])


def test_images_that_are_much_alike_come_back():
    images, labels = drawn(4)
    near = 0.85 * images[:1] + 0.15 * torch.rand(images[:1].shape, generator=seeded(3))
    batch = torch.cat([images, near]), torch.cat([labels, labels[:1]])
    assert_exact(ExactInversion()(observed(perceptron(64, 100, 10), batch), seeded()), batch)


@pytest.mark.parametrize("labels", [[3, 3, 5], [3, 4, 3], [7, 7, 7]], ids=str)
def test_an_image_twice_in_the_batch_comes_back_twice(labels):
    images = drawn(2)[0][[0, 0, 1]]
    batch = images, torch.tensor(labels)
    found = ExactInversion()(observed(perceptron(64, 40, 10), batch), seeded())
    assert_exact(found, batch)
    pairs = zip(found.inputs.mean(dim=(1, 2, 3)).tolist(), found.targets.tolist(), strict=True)
    true = zip(images.mean(dim=(1, 2, 3)).tolist(), labels, strict=True)
    rounded = [sorted((round(mean, 4), label) for mean, label in each) for each in (pairs, true)]
    assert rounded[0] == rounded[1]


def test_dead_units_do_not_matter():
    model = perceptron(64, 60, 10)
    with torch.no_grad():
        model.layers[1].bias[::3] = -100.0
    batch = drawn(4)
    assert_exact(ExactInversion()(observed(model, batch), seeded()), batch)


def test_double_precision_is_used():
    images, labels = drawn(4)
    batch = images.double(), labels
    model = perceptron(64, 60, 10).double()
    found = ExactInversion()(observed(model, batch), seeded())
    assert float(score(found, batch, ssim=False).mse.max()) < 1e-20


@pytest.mark.parametrize("labels", ["known", "unknown"])
@pytest.mark.parametrize(
    "local",
    [
        LocalSteps(0.1, 1),
        LocalSteps(0.1, 3),
        LocalSteps(0.1, 3, momentum=0.5),
        LocalSteps(0.1, 2, 2),
    ],
    ids=str,
)
def test_local_steps_are_as_good_as_a_gradient(local, labels):
    batch = drawn(4)
    observation = observed(perceptron(64, 60, 10), batch, local=local, labels=labels)
    assert_exact(ExactInversion()(observation, seeded()), batch)


def test_a_little_noise_leaves_a_little_error():
    batch = drawn(4)
    model = perceptron(64, 60, 10)
    quality = []
    for scale in (1e-6, 1e-4):
        observation = observed(model, batch, defense=GradientNoise(scale))
        found = ExactInversion()(observation, seeded())
        quality.append(float(score(found, batch, ssim=False).psnr.mean()))
    assert quality[0] > 70
    assert 30 < quality[1] < quality[0]


REFUSED = {
    "much noise": {"defense": GradientNoise(0.1)},
    "smooth activation": {"model": perceptron(64, 40, 10, activation="tanh")},
    "leaky activation": {"model": perceptron(64, 40, 10, activation="leaky_relu")},
    "as many images as units": {"model": perceptron(64, 4, 10)},
    "no bias": {
        "model": nn.Sequential(
            nn.Flatten(), nn.Linear(64, 40, bias=False), nn.ReLU(), nn.Linear(40, 10)
        )
    },
    "convolutions first": {
        "model": nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 40), nn.ReLU(),
            nn.Linear(40, 10),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_does_not_apply_to_is_refused(case):
    options = {"model": perceptron(64, 40, 10), **REFUSED[case]}
    observation = observed(options.pop("model"), drawn(4), **options)
    with pytest.raises(ValueError, match=r"does not apply to\. Use `InvertingGradients`"):
        ExactInversion()(observation, seeded())
    generator = seeded()
    labels = torch.zeros(4, dtype=torch.long)
    assert ExactInversion().solve(Run(observation, labels, generator, Watch(None))) is None
    assert torch.equal(generator.get_state(), seeded().get_state())


def test_a_batch_that_is_too_large_is_given_up_and_never_wrong():
    batch = drawn(12)
    observation = observed(perceptron(64, 16, 10), batch, labels="known")
    labels = torch.zeros(12, dtype=torch.long)
    assert ExactInversion(rounds=3).solve(Run(observation, labels, seeded(), Watch(None))) is None
    found = ExactInversion(rounds=1)(observation, seeded())
    assert found.loss > 0.1


def test_a_pruned_message_is_never_explained():
    observation = observed(perceptron(64, 40, 10), drawn(4), defense=GradientPruning(0.5))
    labels = torch.zeros(4, dtype=torch.long)
    assert ExactInversion(rounds=3).solve(Run(observation, labels, seeded(), Watch(None))) is None


def test_a_message_that_no_batch_makes_is_not_explained():
    observation = observed(perceptron(64, 60, 10), drawn(4))
    sent = dict(observation.sent)
    sent["layers.3.bias"] = -sent["layers.3.bias"]
    other = replace(observation, sent=sent)
    labels = torch.zeros(4, dtype=torch.long)
    assert ExactInversion(rounds=3).solve(Run(other, labels, seeded(), Watch(None))) is None


def test_strong_uses_it_before_anything_else():
    batch = drawn(6)
    observation = observed(perceptron(64, 60, 10), batch, labels="known")
    found = InvertingGradients.strong(steps=2)(observation, seeded())
    assert_exact(found, batch)


def test_time_and_ctrl_c():
    observation = observed(perceptron(64, 60, 10), drawn(4), labels="known")
    assert ExactInversion(time_budget=0.0)(observation, seeded()).status == "time budget"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    assert ExactInversion(progress=stop)(observation, seeded()).status == "interrupted"
    told = []
    ExactInversion(progress=lambda *now: told.append(now))(observation, seeded())
    assert told[0] == (0, 30, 1.0)


def test_same_seed_same_bytes_and_no_hooks_left():
    model = perceptron(64, 60, 10)
    observation = observed(model, drawn(4))
    first, second = (ExactInversion()(observation, seeded()).inputs for _ in range(2))
    assert torch.equal(first, second)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_it_is_known_by_name():
    assert build_attack("exact-inversion(rounds=5)") == ExactInversion(rounds=5)


@pytest.mark.parametrize("loss", [LOSS, lambda o, t: LOSS(o, t, reduction="sum")])
def test_sums_and_means_of_losses(loss):
    batch = drawn(3)
    observation = observe(perceptron(64, 40, 10), loss, batch, NoDefense(), num_classes=10)
    assert_exact(ExactInversion()(observation, seeded()), batch)


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 16, 25])
def test_digits_through_a_perceptron(count):
    data = load_dataset("mnist")
    batch = data.batch(300, count)
    observation = observe(
        perceptron(784, 200, 10), LOSS, batch, NoDefense(), num_classes=10, input_range=data.range,
        threat=ThreatModel(labels="unknown"),
    )  # fmt: skip
    found = ExactInversion()(observation, seeded())
    assert float(score(found, batch, normalization=data, ssim=False).psnr.min()) > EXACT
    assert found.targets.sort()[0].tolist() == batch[1].sort()[0].tolist()

import pytest
import torch
from torch import Tensor, nn

from gradveil import NoDefense, load_dataset
from gradveil.attacks import GradInversion, InvertingGradients, observe
from gradveil.attacks._descent import consensus
from gradveil.attacks._grad_inversion import batch_norm_distance
from gradveil.models import build_model
from gradveil.scoring import bootstrap_interval, score

from .small import LOSS, observed, seeded, smooth_images


def batch_norm_net(public: Tensor, width: int = 8) -> nn.Module:
    """Convolutions with BatchNorm whose running statistics come from public images."""
    channels, side = public.shape[1], public.shape[-1] // 4
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width, momentum=None),
            nn.LeakyReLU(), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * width, momentum=None), nn.LeakyReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * width, momentum=None), nn.LeakyReLU(),
            nn.Flatten(), nn.Linear(2 * width * side * side, 10),
        )  # fmt: skip
    with torch.no_grad():
        model.train()(public)
    return model.eval()


@pytest.mark.slow
def test_beats_inverting_gradients_on_a_batch_norm_network() -> None:
    data = load_dataset("mnist")
    model = batch_norm_net(data.inputs[1000:1512])
    gains = []
    for number in range(3):
        batch = data.batch(8 * number, 8)
        found = observe(model, LOSS, batch, NoDefense(), num_classes=10, input_range=data.range)
        ours, plain = (
            score(attack(found, seeded(number)), batch, normalization=data, ssim=False).psnr
            for attack in (
                GradInversion(steps=120, seeds=2),
                InvertingGradients(steps=120, restarts=2),
            )
        )
        assert ours is not None
        assert plain is not None
        gains.append(ours - plain)
    assert bootstrap_interval(gains, generator=seeded()).low > 1


def small_case(labels: str = "known"):  # type: ignore[no-untyped-def]
    model = batch_norm_net(smooth_images(32, 1, 8, 8, seed=7)[0], width=4)
    batch = smooth_images(2, 1, 8, 8)[0], torch.tensor([3, 3])
    return observed(model, batch, labels=labels), batch


def test_runs_with_unknown_repeated_labels_and_stays_in_range() -> None:
    observation, batch = small_case("unknown")
    found = GradInversion(steps=32, seeds=2, rounds=4)(observation, seeded())
    assert found.inputs.shape == batch[0].shape
    assert 0 <= float(found.inputs.min()) <= float(found.inputs.max()) <= 1
    assert found.status == "finished"


def test_same_seed_same_bytes_model_and_global_generator_untouched() -> None:
    observation, _ = small_case()
    state, before = torch.get_rng_state(), {
        k: v.clone() for k, v in observation.model.state_dict().items()
    }  # fmt: skip
    attack = GradInversion(steps=8, seeds=2, rounds=2)
    first, second = (attack(observation, seeded(1)).inputs for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    after = observation.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not any(m._forward_pre_hooks for m in observation.model.modules())


def test_time_budget() -> None:
    assert (
        GradInversion(steps=8, time_budget=0.0)(small_case()[0], seeded()).status == "time budget"
    )


def test_models_without_batch_norm() -> None:
    batch = smooth_images(1, 2, 6, 9, dtype=torch.float64)
    model = build_model("mlp", sizes=[108, 16, 10]).double()
    observation = observed(model, batch)
    assert batch_norm_distance(observation) is None
    found = GradInversion(steps=100, seeds=2)(observation, seeded())
    assert float(score(found, batch, ssim=False).mse) < 0.05


def test_statistics_of_the_training_data_have_the_least_distance() -> None:
    public = smooth_images(64, 1, 8, 8, seed=7)[0]
    model = batch_norm_net(public, width=4)
    distance = batch_norm_distance(observed(model, smooth_images(2, 1, 8, 8)))
    assert distance is not None
    assert float(distance(public)) < 1e-2
    assert float(distance(torch.rand(64, 1, 8, 8, generator=seeded()))) > 10 * float(
        distance(public)
    )


def test_consensus_matches_images_of_equal_labels_only() -> None:
    images, labels = smooth_images(4, 1, 6, 6)[0], torch.tensor([1, 1, 1, 5])
    seeds = torch.stack([images, images[[2, 0, 1, 3]]])
    torch.testing.assert_close(consensus(seeds, labels), seeds)


@pytest.mark.parametrize("option", ["group", "l2", "batch_norm", "total_variation"])
def test_negative_weights_are_errors(option: str) -> None:
    with pytest.raises(ValueError, match=f"`{option}` should be a finite number of at least 0"):
        GradInversion(**{option: -1.0})  # type: ignore[arg-type]

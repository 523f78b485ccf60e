import pytest
import torch
from torch import Tensor

from gradveil import GradientNoise, NoDefense
from gradveil.attacks import CAFE
from gradveil.attacks._cafe import VerticalObservation, split_blocks
from gradveil.defenses import Defense
from gradveil.models import build_model
from gradveil.scoring import score

from .small import LOSS, RANGE, seeded, smooth_images


def vertical(
    data: tuple[Tensor, Tensor],
    defense: Defense,
    *,
    channels: int | None = None,
    iterations: int = 20,
    workers: int = 4,
    hidden: int = 32,
) -> VerticalObservation:
    model = build_model(
        "gradveil.attacks:VerticalNet", allow_imports=True,
        input_shape=data[0].shape[1:], num_classes=10,
        workers=workers, channels=channels, hidden=hidden,
    ).to(data[0].dtype)  # fmt: skip
    return CAFE.observe(
        model, LOSS, data, defense, num_classes=10, batch_size=8, iterations=iterations,
        input_range=RANGE, generator=seeded(),
    )  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize("channels", [None, 6], ids=["linear first", "convolution first"])
def test_a_dozen_images_from_batches_of_eight(channels: int | None) -> None:
    data = smooth_images(12, 3, 12, 16)
    found = CAFE(steps=100)(vertical(data, NoDefense(), channels=channels), seeded())
    scores = score(found, data[0], ssim=False)
    assert scores.psnr is not None
    assert float(scores.psnr.min()) > 25
    assert scores.assignment.tolist() == list(range(12))  # the indices tell the order


@pytest.mark.slow
def test_noise_hurts_and_more_iterations_help() -> None:
    data = smooth_images(10, 1, 12, 12)
    noise, errors = GradientNoise(1e-3), []
    for defense, iterations in ((noise, 24), (noise, 120), (NoDefense(), 24)):
        observation = vertical(data, defense, iterations=iterations)
        found = CAFE(steps=40)(observation, seeded())
        errors.append(float(score(found, data[0], ssim=False).mse.mean()))
    assert errors[0] > errors[1] > errors[2]


def test_tables_in_double_precision() -> None:
    data = torch.rand(9, 20, generator=seeded(), dtype=torch.float64), torch.arange(9)
    found = CAFE()(vertical(data, NoDefense(), workers=3), seeded())
    torch.testing.assert_close(found.inputs, data[0], rtol=0, atol=1e-6)


def test_too_few_iterations_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"should determine 12 examples\. Found 5 batches"):
        CAFE()(vertical(smooth_images(12, 1, 8, 8), NoDefense(), iterations=5))


def test_time_budget_and_seeds() -> None:
    observation = vertical(smooth_images(9, 1, 8, 8), NoDefense(), channels=4)
    assert CAFE(time_budget=0.0)(observation, seeded()).status == "time budget"
    first, second = (CAFE(steps=20)(observation, seeded(3)).inputs for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(("shape", "workers"), [((3, 7, 9), 4), ((1, 8, 8), 3), ((13,), 5)])
def test_blocks_are_disjoint_and_cover(shape: tuple[int, ...], workers: int) -> None:
    owned = torch.zeros(shape)
    for block in split_blocks(shape, workers):
        owned[block] += 1
    assert bool((owned == 1).all())
    with pytest.raises(ValueError, match="Use fewer workers"):
        split_blocks((3,), 4)

import pytest
import torch
from torch import Tensor

from gradveil import NonFiniteError, load_dataset
from gradveil.attacks import Reconstruction
from gradveil.scoring import score
from gradveil.scoring._scores import structural_similarity


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_finds_the_permutation_and_keeps_the_unmatched_values() -> None:
    truth, order = images(5, 1, 12, 12), torch.tensor([3, 0, 4, 1, 2])
    found = score(truth[order], truth)
    assert found.assignment.tolist() == order.argsort().tolist()
    assert float(found.mse.max()) == 0
    assert float(found.unmatched_mse.min()) > 0.05
    assert found.psnr is not None
    assert found.psnr.tolist() == [120.0] * 5
    assert found.unmatched_psnr is not None
    assert float(found.unmatched_psnr.max()) < 15
    torch.testing.assert_close(found.ssim, torch.ones(5))


def test_both_units() -> None:
    data = load_dataset("cifar10", limit=3)
    shift = 0.1 / torch.tensor(data.std).reshape(3, 1, 1)
    grey = torch.zeros_like(data.inputs)
    found = score(grey + shift, grey, normalization=data, ssim=False)
    torch.testing.assert_close(found.mse_pixels, torch.full((3,), 0.01))
    torch.testing.assert_close(found.psnr, torch.full((3,), 20.0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.mse, shift.square().mean().expand(3))
    by_name = score(grey + shift, grey, normalization="cifar10", ssim=False)
    torch.testing.assert_close(by_name.mse_pixels, found.mse_pixels)


def test_pixels_are_clamped_and_normalised_units_are_not() -> None:
    truth = torch.ones(1, 1, 4, 4)
    found = score(truth + 10, truth)
    assert float(found.mse) == 100
    assert float(found.mse_pixels) == 0


def test_tables_have_errors_only() -> None:
    found = score(images(4, 7), images(4, 7, seed=1))
    assert (found.psnr, found.ssim, found.unmatched_psnr, found.unmatched_ssim) == (None,) * 4
    assert float(found.unmatched_mse.min()) > 0


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 20), (1, 5, 5), (2, 3, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ssim_of_any_size(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    truth = images(2, *shape, dtype=dtype)
    near, far = truth + 0.01, images(2, *shape, seed=9, dtype=dtype)
    found, distant = structural_similarity(near, truth), structural_similarity(far, truth)
    assert found is not None
    assert distant is not None
    assert found.shape == (2,)
    assert bool((found > distant).all())


def test_ssim_needs_nine_pixels() -> None:
    assert score(images(2, 1, 2, 9), images(2, 1, 2, 9)).ssim is None


def test_label_accuracy_ignores_the_order() -> None:
    truth = images(4, 1, 4, 4)
    guess = Reconstruction(truth, torch.tensor([2, 1, 1, 0]), 0.0)
    assert score(guess, (truth, torch.tensor([0, 1, 2, 2]))).label_accuracy == 0.75
    untold = Reconstruction(truth, torch.full((4,), -1), 0.0)
    assert score(untold, (truth, torch.tensor([0, 1, 2, 2]))).label_accuracy == 0.0
    assert score(guess, truth).label_accuracy is None


def test_unusable_reconstructions() -> None:
    truth = images(2, 1, 4, 4)
    with pytest.raises(ValueError, match="should have the shape of `truth`"):
        score(truth[:1], truth)
    with pytest.raises(NonFiniteError, match="`reconstruction` should be finite"):
        score(truth * torch.nan, truth)

"""Image quality: PSNR and SSIM."""

from typing import Any

import torch
from torch import Tensor

from gradveil._extras import require

PSNR_LIMIT = 120.0
"""Where PSNR ends, in dB: a perfect copy would be infinite and spoil every mean."""

_SIGMA, _SPREAD = 1.5, 3.5  # of SSIM's Gaussian window, and its radius in units of that


def psnr(mse: Tensor) -> Tensor:
    """10 log10(1 / mse) for errors in [0, 1] units, at most `PSNR_LIMIT`.

    >>> psnr(torch.tensor([0.01, 0.0]))
    tensor([ 20., 120.])
    """
    least = 10 ** (-PSNR_LIMIT / 10)
    return -10 * torch.log10(mse.clamp_min(least))


def structural_similarity(reconstruction: Tensor, truth: Tensor) -> Tensor | None:
    """SSIM of each pair of images in [0, 1] units; `None` for images smaller than 3x3.

    The usual window is Gaussian, σ = 1.5, 11x11. Where an image is smaller than that, σ shrinks so
    that the window still fits; such values compare with each other, not with those of large images.

    Reference: Wang et al., "Image Quality Assessment: From Error Visibility to Structural
    Similarity", IEEE TIP 2004.

    >>> image = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    >>> structural_similarity(image, image)
    tensor([1.])
    """
    radius = min(int(_SPREAD * _SIGMA + 0.5), (min(truth.shape[-2:]) - 1) // 2)
    if radius < 1:
        return None
    sigma = min(_SIGMA, radius / _SPREAD)
    values: Tensor = _ssim()(
        reconstruction, truth, gaussian_kernel=True, sigma=sigma, reduction="none", data_range=1.0
    )
    return values.reshape(len(truth))


def _ssim() -> Any:
    require("SSIM", "gradveil[audit]", "torchmetrics")
    from torchmetrics.functional.image import structural_similarity_index_measure

    return structural_similarity_index_measure

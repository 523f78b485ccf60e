"""What images look like, learned from public examples: a denoiser and the prior that it gives.

>>> import torch
>>> from gradveil.denoising import Denoiser
>>> samples = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
>>> denoiser = Denoiser.fit(samples, steps=5, generator=torch.Generator().manual_seed(1))
>>> denoiser(samples + 0.1, 0.1).shape
torch.Size([64, 3])
"""

from ._denoiser import Denoiser, LearnedPrior, LearnedPriors

__all__ = ["Denoiser", "LearnedPrior", "LearnedPriors"]

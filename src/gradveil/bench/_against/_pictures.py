"""One image of each case: the truth, the guess, the peer's and ours."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil.catalog import Spec

from ._runs import AgainstRun


@dataclass(frozen=True)
class AgainstPictures:
    """The first image of a case's first batch."""

    case: str
    images: Tensor
    """Shape (count, channels, height, width), in [0, 1]; the truth comes first."""
    notes: tuple[str, ...]
    """What each of them is, with its decibels."""


def against_pictures(
    case: str, truth: Tensor, runs: Sequence[AgainstRun]
) -> AgainstPictures | None:
    """The truth, in [0, 1], and what was found in these runs on one batch.

    `None` where a run that was kept has no picture: its file is of an older version.
    """
    found = [torch.tensor(run.picture) / 255 for run in runs if run.picture is not None]
    if len(found) < len(runs):
        return None
    notes = [f"{Spec.parse(run.attack).name}\n{run.psnr[0]:.1f} dB" for run in runs]
    return AgainstPictures(case, torch.stack([truth, *found]), ("truth", *notes))

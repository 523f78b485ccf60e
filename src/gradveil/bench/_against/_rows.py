"""The table: attacks beside a peer and a blind guess, with intervals over batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gradveil._random import named_stream
from gradveil.scoring import Interval, bootstrap_interval, paired_interval

from ._cases import AgainstCase
from ._runs import AgainstRun

PEER, GUESS = "inversefed", "guess"


@dataclass(frozen=True)
class AgainstRow:
    """One of our attacks in one case; decibels are means over images and batches."""

    case: str
    images: int
    batches: int
    attack: str
    guess: float
    peer: Interval
    ours: Interval
    gain: Interval
    """Ours minus the peer's, paired by image."""
    seconds: float
    """Of ours, for a batch."""
    peer_seconds: float
    peer_steps: float


def against_row(
    case: AgainstCase, attack: str, runs: Mapping[str, Sequence[AgainstRun]]
) -> AgainstRow:
    """The row of an attack from all runs of a case, by attack."""
    name = ("bench against", case.name, attack)
    psnr = {each: [torch.tensor(run.psnr) for run in runs[each]] for each in (attack, PEER, GUESS)}
    return AgainstRow(
        case=case.title,
        images=case.images,
        batches=len(runs[attack]),
        attack=attack,
        guess=float(torch.cat(psnr[GUESS]).mean()),
        peer=bootstrap_interval(psnr[PEER], generator=named_stream(*name)),
        ours=bootstrap_interval(psnr[attack], generator=named_stream(*name)),
        gain=paired_interval(psnr[attack], psnr[PEER], generator=named_stream(*name)),
        seconds=_mean([run.seconds for run in runs[attack]]),
        peer_seconds=_mean([run.seconds for run in runs[PEER]]),
        peer_steps=_mean([run.steps for run in runs[PEER]]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

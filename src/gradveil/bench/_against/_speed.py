"""Steps per second of our descent beside the peer's loop."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from gradveil._timing import time_ratios
from gradveil.attacks import Attack, InvertingGradients, Observation
from gradveil.data import Dataset

from ._cases import AGAINST_CASES, AgainstCase
from ._inverse_fed import InverseFed

SPEED_CASES: tuple[AgainstCase, ...] = (
    *(case for case in AGAINST_CASES if case.name in ("mnist", "cifar-2")),
    AgainstCase("cifar-64", "ConvNet-64, untrained", "cifar10", "conv-net", 2),
    *(case for case in AGAINST_CASES if case.name in ("resnet", "fedavg", "batch-norm")),
)


@dataclass(frozen=True)
class SpeedRow:
    """One case."""

    case: str
    images: int
    parameters: int
    milliseconds: float
    """Of this process's own time for a step of the peer's, the least that was seen."""
    ratio: float
    """Our steps in the time of one of the peer's, the median over repetitions side by side."""


def bench_speed(
    data: Mapping[str, Dataset],
    cases: Sequence[AgainstCase] = SPEED_CASES,
    *,
    steps: int = 10,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[SpeedRow]:
    """The same method in both: cosine, total variation, signed Adam, one start, clamped.

    Args:
        data: By the name of the data set in the cases.
        cases: Models and batches.
        steps: In one run, at least 2; what an attack does before its first step counts.
        repeats: Interleaved repetitions.
        progress: Told what is being measured.
    """
    for case in cases:
        progress(case.title)
        yield _measured(case, data[case.data], steps, repeats)


def _measured(case: AgainstCase, data: Dataset, steps: int, repeats: int) -> SpeedRow:
    model, batch = case.build(data), data.batch(0, case.images)
    observation = case.observation(model, batch, data, 0, False)
    peer = InverseFed(steps, total_variation=case.total_variation)
    ours = InvertingGradients(steps - 1, peer.lr, peer.total_variation)  # rates its last iterate
    seconds: list[float] = []
    ratio = time_ratios(
        lambda: seconds.append(_seconds(peer, observation)),
        {"ours": lambda: _seconds(ours, observation)},
        repeats,
        time.process_time,
    )["ours"]
    count = sum(weight.numel() for weight in model.parameters())
    return SpeedRow(case.title, case.images, count, 1000 * min(seconds) / steps, 1 / ratio)


def _seconds(attack: Attack, observation: Observation) -> float:
    begin = time.process_time()
    attack(observation, torch.Generator().manual_seed(0))
    return time.process_time() - begin

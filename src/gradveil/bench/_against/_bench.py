"""Runs our attacks, the peer's method and the blind guess on the same batches."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from gradveil.attacks import Attack
from gradveil.catalog import build_attack
from gradveil.data import Dataset
from gradveil.scoring import score

from ._cases import AgainstCase
from ._inverse_fed import InverseFed
from ._pictures import AgainstPictures, against_pictures
from ._rows import GUESS, PEER, AgainstRow, against_row
from ._runs import AgainstRun, RunFile


@dataclass(frozen=True)
class AgainstSettings:
    """How attacks are compared.

    Args:
        batches: Of each case.
        first: The place of the first batch in the data; `None`: the last images are taken.
        attacks: Ours, as the catalogue spells them; `None`: those of the case.
        steps: Of ours; `None`: as they are.
        seconds: After which ours have to end; `None`: no limit.
        least: Seconds that the peer gets at least; else as many as the slowest of ours took.
    """

    batches: int = 8
    first: int | None = None
    attacks: tuple[str, ...] | None = None
    steps: int | None = None
    seconds: float | None = None
    least: float = 0.0

    def starts(self, case: AgainstCase, data: Dataset) -> range:
        """The first image of each batch."""
        needed = self.batches * case.images
        first = len(data) - needed if self.first is None else self.first
        if first < 0 or first + needed > len(data) or needed == len(data):
            raise ValueError(
                f"Parameter `batches` should need less than the {len(data)} images of"
                f" `{data.name}`. Found that case {case.name!r} needs {needed} from number"
                f" {max(first, 0)} on, and others for the guess. Give fewer, or more data."
            )
        return range(first, first + needed, case.images)


def bench_against(
    cases: Sequence[AgainstCase],
    data: Mapping[str, Dataset],
    settings: AgainstSettings,
    *,
    file: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
    show: Callable[[AgainstPictures], None] = lambda _: None,
) -> Iterator[AgainstRow]:
    """One row for each case and each of our attacks, as they are done.

    The peer is `InverseFed`, for as many seconds of this process's own time as the slowest of our
    attacks took on the same batch. Labels and the range of pixels are known to all; only attacks
    that say so know the defense. The guess is the mean of all images that are not attacked.

    Args:
        cases: What to attack.
        data: By the name of the data set in the cases.
        settings: How.
        file: Keeps each run, so that a run which was stopped goes on where it was. Remove it when
            an attack has changed.
        progress: Told what is being measured.
        show: Gets an image of each case with what was found of it, when the case is done.
    """
    runs = RunFile(file)
    for case in cases:
        comparison = _Comparison(case, data[case.data], settings, runs, progress)
        yield from comparison.rows(show)


class _Comparison:
    """One case."""

    def __init__(
        self,
        case: AgainstCase,
        data: Dataset,
        settings: AgainstSettings,
        runs: RunFile,
        progress: Callable[[str], None],
    ) -> None:
        self.case, self.data, self.settings, self.runs = case, data, settings, runs
        self.progress, self.starts = progress, settings.starts(case, data)
        self.public = _without(data, self.starts[0], self.starts[-1] + case.images)
        self.model: nn.Module | None = None

    def rows(self, show: Callable[[AgainstPictures], None]) -> list[AgainstRow]:
        """Run what is missing; one row for each attack of ours."""
        ours = self.settings.attacks or self.case.attacks
        found: dict[str, list[AgainstRun]] = {name: [] for name in (*ours, PEER, GUESS)}
        for first in self.starts:
            for name in ours:
                found[name].append(self._run(name, build_attack(name), first))
            took = max(found[name][-1].seconds for name in ours)
            peer = InverseFed(
                total_variation=self.case.total_variation,
                time_budget=max(took, self.settings.least),
            )
            found[PEER].append(self._run(PEER, peer, first))
            guess = self.public.inputs.mean(0, keepdim=True).expand_as(self._batch(first)[0])
            found[GUESS].append(self._scored(GUESS, first, guess, 0.0, 0))
        truth = self.data.to_pixels(self._batch(self.starts[0])[0])[0]
        pictures = [found[name][0] for name in (GUESS, PEER, *ours)]
        if (shown := against_pictures(self.case.title, truth, pictures)) is not None:
            show(shown)
        return [against_row(self.case, name, found) for name in ours]

    def _run(self, name: str, attack: Attack, first: int) -> AgainstRun:
        """One attack on one batch, unless that is done."""
        done = self.runs.find(self.case.name, name, first, self._settings)
        if done is not None:
            return done
        self.progress(f"{self.case.title}, image {first} on: {name}")
        if self.model is None:
            self.model = self.case.build(self.public)
        observation = self.case.observation(
            self.model, self._batch(first), self.data, first, attack.knows_defense
        )
        if isinstance(attack, InverseFed):
            replace(attack, steps=1)(observation)  # the first step in a process loads modules
        else:
            attack = attack.configured(self.settings.steps, self.settings.seconds)
        begin = time.process_time()
        result = attack(observation, torch.Generator().manual_seed(first))
        seconds = time.process_time() - begin
        steps = result.history[-1][0] if result.history else 0
        return self.runs.add(self._scored(name, first, result.inputs, seconds, steps))

    def _scored(
        self, name: str, first: int, inputs: Tensor, seconds: float, steps: int
    ) -> AgainstRun:
        scores = score(inputs, self._batch(first)[0], normalization=self.data, ssim=False)
        assert scores.psnr is not None
        image = self.data.to_pixels(inputs.detach())[scores.assignment[0]].clamp(0, 1)
        return AgainstRun(
            self.case.name,
            name,
            first,
            self._settings,
            tuple(scores.psnr.tolist()),
            seconds,
            steps,
            (255 * image).round().int().tolist(),
        )

    def _batch(self, first: int) -> tuple[Tensor, Tensor]:
        return self.data.batch(first, self.case.images)

    @property
    def _settings(self) -> str:
        """What a run depends on beside its case, attack and batch."""
        own = self.settings
        span = f"{self.starts[0]} to {self.starts[-1] + self.case.images - 1}"
        limits = f"steps {own.steps}, seconds {own.seconds}, least {own.least}"
        return f"{self.data.name}, {len(self.data)} images, attacked {span}, {limits}"


def _without(data: Dataset, first: int, end: int) -> Dataset:
    """The other examples."""
    parts = ((x[:first], x[end:]) for x in (data.inputs, data.targets))
    inputs, targets = (torch.cat(pair) for pair in parts)
    return replace(data, inputs=inputs, targets=targets)

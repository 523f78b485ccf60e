"""Our attacks beside a peer's method and a blind guess: the same batches, the same time."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil._checks import WrongValue
from gradveil._drawing import new_figure, save_figure
from gradveil._random import named_stream
from gradveil._runner import Cell, Runner
from gradveil.attacks import Attack, Observation, ThreatModel, observe
from gradveil.catalog import build_attack, build_defense
from gradveil.data import Dataset, load_dataset
from gradveil.defenses import Defense, NoDefense, Rounding
from gradveil.messages import GradientMessage, LocalSteps
from gradveil.models import build_model
from gradveil.scoring import Interval, bootstrap_interval, score

from .cases import train
from .inverse_fed import InverseFed
from .tables import Out, report, tell

PEER, GUESS, TRUTH = "inversefed", "guess", "truth"


@dataclass(frozen=True)
class AttackCase:
    """A model, batches of one size and what is sent."""

    name: str
    title: str
    data: str
    """"mnist" or "cifar10"."""
    model: str
    images: int
    """In one batch."""
    defense: str | None = None
    bits: int | None = None
    """Rounds to so many bits between the least and the largest entry, in place of a defense."""
    trained: int = 0
    """Adam steps on other images."""
    local: LocalSteps | None = None
    training_mode: bool = False
    """Whether BatchNorm takes the statistics of the batch."""
    total_variation: float = 1e-4
    """The peer's, as published for such models."""

    @property
    def attacks(self) -> tuple[str, ...]:
        """Ours: where something is done to the message, one that knows of it, too."""
        plain = self.defense is None and self.bits is None
        return ("strong",) if plain else ("strong", "adaptive")

    def build(self, public: Dataset) -> nn.Module:
        """The model, trained on public examples where the case says so."""
        model = build_model(self.model, seed=0)
        if self.trained:
            train(model.train(), public, self.trained)
        return model.train(self.training_mode)

    def observation(
        self, model: nn.Module, batch: tuple[Tensor, Tensor], data: Dataset, seed: int, known: bool
    ) -> Observation:
        """What the attacker gets of one batch; the same values whether it knows the defense."""
        return observe(
            model,
            cross_entropy,
            batch,
            self._defense(model, batch),
            threat=ThreatModel(mechanism="known" if known else "unknown"),
            num_classes=data.num_classes,
            input_range=data.range,
            local=self.local,
            generator=torch.Generator().manual_seed(seed),
        )

    def _defense(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Defense:
        if self.bits is not None:
            values = GradientMessage(model, cross_entropy, batch[1]).values(batch[0]).values()
            low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
            return Rounding((high - low) / (2**self.bits - 1))
        return NoDefense() if self.defense is None else build_defense(self.defense)


_DIGITS = AttackCase("mnist", "MNIST CNN, untrained", "mnist", "simple-conv-net", 4)
_PHOTOS = AttackCase("cifar-1", "ConvNet-16, untrained", "cifar10", "conv-net(width=16)", 1)
_MLP = "mlp(sizes=[784, 200, 10], activation='relu')"
_BATCH_NORM = "ConvNet-16, BatchNorm in training mode"

CASES: tuple[AttackCase, ...] = (
    _DIGITS,
    replace(_PHOTOS, name="cifar-2", images=2),
    _PHOTOS,
    AttackCase("resnet", "ResNet-18, untrained", "cifar10", "res-net", 1, total_variation=1e-2),
    replace(_DIGITS, name="trained", title="MNIST CNN after 60 Adam steps", trained=60),
    AttackCase("mlp", "MLP 784-200-10, ReLU", "mnist", _MLP, 8),
    replace(_DIGITS, name="sign", title="sign compression", defense="sign-compression"),
    replace(_DIGITS, name="8-bit", title="8-bit quantisation", bits=8),
    replace(_DIGITS, name="noise", title="noise 0.01", defense="gradient-noise(0.01)"),
    replace(_DIGITS, name="fedavg", title="FedAvg, 4 steps of 0.1", local=LocalSteps(0.1, 4)),
    replace(_PHOTOS, name="batch-norm", title=_BATCH_NORM, images=4, training_mode=True),
)


def named(names: Sequence[str] | None) -> list[AttackCase]:
    """The cases of these names, in their order; all of them if `None`."""
    known = {case.name: case for case in CASES}
    for name in names or ():
        if name not in known:
            raise ValueError(f"Case should be one of {', '.join(known)}. Found {name!r}.")
    return [known[name] for name in names or known]


def settings_of(case: AttackCase, source: str, batches: int, **limits: Any) -> list[dict[str, Any]]:
    """For `compare`, one batch each: the last images of the data that the case's name stands for.

    Limits: `attacks` (ours, by name, in place of those of the case), `steps` (of ours) and
    `seconds` (after which ours have to end).
    """
    count = len(_data(case.data, source))
    begin = count - batches * case.images
    if begin < 1:
        raise WrongValue(
            "batches",
            f"need less than the {count} images of `{source}`",
            f"that case {case.name!r} needs {count - begin}, and others for the guess",
        )
    limits["attacks"] = [*(limits.get("attacks") or case.attacks)]
    span = {"case": case.name, "source": source, "begin": begin}
    return [{**span, **limits, "first": first} for first in range(begin, count, case.images)]


def compare(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Our attacks, then the peer for as long as the slowest of them took, and a guess: one batch.

    Times are of this process's own. Labels and the range of pixels are known to all; only attacks
    that say so know the defense. The guess is the mean of all images that are not attacked. Each
    has its `psnr`, in dB, of each image, matched; its `seconds` and `steps`; and the `picture` of
    the batch's first image, 0 to 255. The images themselves are at "truth".
    """
    (case,), first = named([settings["case"]]), settings["first"]
    data = _data(case.data, settings["source"])
    public, model = _public(case, settings["source"], settings["begin"])
    batch = data.batch(first, case.images)
    found = {}
    for name in settings["attacks"]:
        attack = build_attack(name).configured(settings.get("steps"), settings.get("seconds"))
        found[name] = _run(case, model, data, first, attack)
    budget = max(one["seconds"] for one in found.values())
    peer = InverseFed(total_variation=case.total_variation, time_budget=budget)
    _run(case, model, data, first, replace(peer, steps=1))  # the first step loads modules
    found[PEER] = _run(case, model, data, first, peer)
    guess = public.inputs.mean(0, keepdim=True).expand_as(batch[0])
    found[GUESS] = _scored(data, batch[0], guess)
    return {**found, TRUTH: _scored(data, batch[0], batch[0])}


@lru_cache(2)
def _data(name: str, source: str) -> Dataset:
    return load_dataset(source, normalization="cifar10" if name == "cifar10" else None)


@lru_cache(1)
def _public(case: AttackCase, source: str, begin: int) -> tuple[Dataset, nn.Module]:
    """All that is not attacked, and a model that has seen none else."""
    data = _data(case.data, source)
    public = replace(data, inputs=data.inputs[:begin], targets=data.targets[:begin])
    return public, case.build(public)


def _run(
    case: AttackCase, model: nn.Module, data: Dataset, first: int, attack: Attack
) -> dict[str, Any]:
    batch = data.batch(first, case.images)
    observation = case.observation(model, batch, data, first, attack.knows_defense)
    steps = [0]
    attack = attack.configured(progress=lambda step, *_: steps.append(step))
    begin = time.process_time()
    result = attack(observation, torch.Generator().manual_seed(first))
    seconds = time.process_time() - begin
    return {**_scored(data, batch[0], result.inputs), "seconds": seconds, "steps": steps[-1]}


def _scored(data: Dataset, truth: Tensor, inputs: Tensor) -> dict[str, Any]:
    scores = score(inputs, truth, normalization=data, ssim=False)
    assert scores.psnr is not None
    image = data.to_pixels(inputs.detach())[scores.assignment[0]].clamp(0, 1)
    return {"psnr": scores.psnr.tolist(), "picture": (255 * image).round().int().tolist()}


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


def rows_of(case: AttackCase, found: Sequence[Mapping[str, Any]]) -> Iterator[AgainstRow]:
    """A row for each of our attacks, from what `compare` found on the batches of a case."""

    def mean(attack: str, what: str) -> float:
        return float(sum(one[attack][what] for one in found)) / len(found)

    def psnr(attack: str) -> list[Tensor]:
        return [torch.tensor(one[attack]["psnr"], dtype=torch.float64) for one in found]

    for attack in [name for name in found[0] if name not in (PEER, GUESS, TRUTH)]:
        name = ("bench against", case.name, attack)
        gains = [a - b for a, b in zip(psnr(attack), psnr(PEER), strict=True)]
        yield AgainstRow(
            case=case.title,
            images=case.images,
            batches=len(found),
            attack=attack,
            guess=float(torch.cat(psnr(GUESS)).mean()),
            peer=bootstrap_interval(psnr(PEER), generator=named_stream(*name)),
            ours=bootstrap_interval(psnr(attack), generator=named_stream(*name)),
            gain=bootstrap_interval(gains, generator=named_stream(*name)),
            seconds=mean(attack, "seconds"),
            peer_seconds=mean(PEER, "seconds"),
            peer_steps=mean(PEER, "steps"),
        )


def draw_pictures(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """A row for each case's title: the first image of its first batch, and what was found of it."""
    columns = max(len(one) for one in found.values())
    figure = new_figure(1.25 * columns, 1.45 * len(found))
    axes = figure.subplots(len(found), columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for line, (title, one) in zip(axes, found.items(), strict=True):
        ours = [name for name in one if name not in (TRUTH, GUESS, PEER)]
        for axis, name in zip(line, (TRUTH, GUESS, PEER, *ours), strict=False):
            image = torch.tensor(one[name]["picture"]).permute(1, 2, 0).numpy()
            axis.imshow(image, cmap="gray", vmin=0, vmax=255)
            note = title if name == TRUTH else f"{name}, {one[name]['psnr'][0]:.1f} dB"
            axis.set_title(note, fontsize=6, wrap=True)
    save_figure(figure, path, tight=True)


def main(
    case: Annotated[list[str] | None, typer.Option(help="A case; repeatable. All of them.")] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="One of ours; repeatable. Those of the case.")
    ] = None,
    batches: Annotated[int, typer.Option(help="Of each case: the last images.", min=1)] = 8,
    steps: Annotated[int | None, typer.Option(help="Steps of ours.", min=1)] = None,
    seconds: Annotated[float | None, typer.Option(help="After which ours end.")] = None,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    cifar: Annotated[str, typer.Option(help="CIFAR-10: embedded, a folder or .npz.")] = "cifar10",
    out: Out = None,
) -> None:
    """Our attacks, Geiping et al.'s method in the same time, and a blind guess."""
    sources = {"mnist": mnist, "cifar10": cifar}
    limits = {"attacks": attack, "steps": steps, "seconds": seconds}
    chosen = {
        one: [
            Cell(compare, each) for each in settings_of(one, sources[one.data], batches, **limits)
        ]
        for one in named(case)
    }
    with TemporaryDirectory() as nowhere, Runner(out / "cells" if out else nowhere) as runner:
        cells = [cell for own in chosen.values() for cell in own]
        outcome = runner.run(cells, progress=lambda cell: tell(cell.text))
        for failure in outcome.failures.values():
            raise RuntimeError(failure.traceback)
        if outcome.stopped:
            return
        read = {cell: runner.read(cell) for cell in cells}
    found = {
        one: [kept.values for cell in own if (kept := read[cell])] for one, own in chosen.items()
    }
    rows = [row for one, all_found in found.items() for row in rows_of(one, all_found)]
    report(rows, "against", out, ["case", "attack", "guess", "peer", "ours", "gain", "seconds"])
    if out is not None:
        draw_pictures({one.title: first for one, (first, *_) in found.items()}, out / "against.png")


if __name__ == "__main__":
    typer.run(main)

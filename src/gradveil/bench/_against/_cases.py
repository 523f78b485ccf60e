"""The cases on which attacks are compared with a peer's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil._suggest import suggestion
from gradveil.attacks import LocalSteps, Observation, ThreatModel, observe
from gradveil.catalog import build_defense
from gradveil.data import Dataset
from gradveil.defenses import Defense, NoDefense, Rounding
from gradveil.messages import GradientMessage
from gradveil.models import build_model

from .._cases import train


@dataclass(frozen=True)
class AgainstCase:
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
    def is_defended(self) -> bool:
        """Whether something is done to the message: an attack that knows of it is asked, too."""
        return self.defense is not None or self.bits is not None

    @property
    def attacks(self) -> tuple[str, ...]:
        """Ours, unless the user names others."""
        return ("strong", "adaptive") if self.is_defended else ("strong",)

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
            low, high = (
                float(torch.stack([f(v) for v in values]).aminmax()[i])
                for i, f in ((0, torch.min), (1, torch.max))
            )
            return Rounding((high - low) / (2**self.bits - 1))
        return NoDefense() if self.defense is None else build_defense(self.defense)


_DIGITS = AgainstCase("mnist", "MNIST CNN, untrained", "mnist", "simple-conv-net", 4)
_PHOTOS = AgainstCase("cifar-1", "ConvNet-16, untrained", "cifar10", "conv-net(width=16)", 1)

AGAINST_CASES: tuple[AgainstCase, ...] = (
    _DIGITS,
    replace(_PHOTOS, name="cifar-2", images=2),
    _PHOTOS,
    AgainstCase("resnet", "ResNet-18, untrained", "cifar10", "res-net", 1, total_variation=1e-2),
    replace(_DIGITS, name="trained", title="MNIST CNN after 60 Adam steps", trained=60),
    AgainstCase(
        "mlp",
        "MLP 784-200-10, ReLU",
        "mnist",
        "mlp(sizes=[784, 200, 10], activation='relu')",
        8,
    ),
    replace(_DIGITS, name="sign", title="sign compression", defense="sign-compression"),
    replace(_DIGITS, name="8-bit", title="8-bit quantisation", bits=8),
    replace(_DIGITS, name="noise", title="noise 0.01", defense="gradient-noise(0.01)"),
    replace(
        _DIGITS,
        name="fedavg",
        title="FedAvg, 4 steps of 0.1",
        local=LocalSteps(lr=0.1, steps=4),
    ),
    replace(
        _PHOTOS,
        name="batch-norm",
        title="ConvNet-16, BatchNorm in training mode",
        images=4,
        training_mode=True,
    ),
)


def against_cases(names: Sequence[str] | None = None) -> list[AgainstCase]:
    """The cases of these names, in their order; all of them if `None`."""
    known = {case.name: case for case in AGAINST_CASES}
    for name in names or ():
        if name not in known:
            raise ValueError(
                f"Parameter `case` should be one of {', '.join(known)}. Found {name!r}."
                f"{suggestion(name, known) or ' Choose one of these.'}"
            )
    return [known[name] for name in names] if names else list(AGAINST_CASES)

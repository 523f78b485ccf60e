"""The subject of an audit: model, private batches and public knowledge, checked once."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradveil._batches import check_batch
from gradveil._checks import check_count, check_kind
from gradveil._random import numbered_stream
from gradveil.attacks import LocalSteps
from gradveil.data import Dataset, NormalizationLike, observed_normalization, resolve_normalization
from gradveil.denoising import LearnedPriors
from gradveil.messages import GradientMessage, LocalUpdateMessage, LossFunction
from gradveil.models import count_classes
from gradveil.theory import GaussianPrior

from ._defaults import POPULATION, PRIOR_LIMIT

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Subject:
    """A model, the private batches, and what everybody may know."""

    model: nn.Module
    loss_fn: LossFunction
    data: Dataset
    """The private examples, with their units."""
    batch_size: int
    public: Batch | None
    """Other examples: the prior and the training come from them."""
    prior: GaussianPrior | None
    local: LocalSteps | None
    """FedAvg's local steps; `None`: gradients are sent."""
    range_is_public: bool = True
    """Whether the range of inputs comes from elsewhere than the private examples."""
    learned: LearnedPriors | None = None
    """What a denoiser learned from public examples; then bounds take it in place of the prior."""

    def batch(self, index: int) -> Batch:
        """One of the private batches."""
        return self.data.batch(index * self.batch_size, self.batch_size)

    @property
    def batches(self) -> int:
        """How many there are."""
        return len(self.data) // self.batch_size

    def population(self, most: int = POPULATION) -> list[Batch]:
        """Batches of public examples, for what is a mean over data: the private ones without any.

        As many as are disjoint, and then from the start in another order.
        """
        if self.public is None or len(self.public[0]) < self.batch_size:
            return [self.batch(index) for index in range(self.batches)]
        inputs, targets = self.public
        per_round = len(inputs) // self.batch_size
        rounds = -(-most // per_round)
        orders = [torch.randperm(len(inputs), generator=numbered_stream(r)) for r in range(rounds)]
        chosen = [
            o[k * self.batch_size :][: self.batch_size] for o in orders for k in range(per_round)
        ]
        return [(inputs[c.to(inputs.device)], targets[c.to(targets.device)]) for c in chosen[:most]]

    @property
    def is_image(self) -> bool:
        """Whether examples are images (channels, height, width)."""
        return self.data.inputs.dim() == 4

    @property
    def guess(self) -> Tensor:
        """What one guesses of an example without any message: the mean of the public ones."""
        return (self.data.inputs if self.public is None else self.public[0]).mean(0)

    def message(self, targets: Tensor) -> GradientMessage | LocalUpdateMessage:
        """What a client with these targets would send."""
        if self.local is None:
            return GradientMessage(self.model, self.loss_fn, targets)
        return self.local.message(self.model, self.loss_fn, targets)


def make_subject(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Batch,
    *,
    batches: int,
    public: Batch | None,
    normalization: Dataset | NormalizationLike,
    local: LocalSteps | None,
    name: str,
    labels_known: bool = True,
) -> Subject:
    """Check what the user handed in; `batch` is cut into `batches` of equal size.

    Where attackers are told the labels, the prior is that within classes.
    """
    device = _device(model)
    inputs, targets = _examples(batch, device, "batch")
    check_count(batches, "batches")
    if local is not None:
        check_kind(local, "local", LocalSteps, "Use for example `LocalSteps(lr=0.1, steps=2)`.")
    if len(inputs) % batches:
        raise ValueError(
            f"Parameter `batches` should divide the number of examples. Found {len(inputs)}"
            f" examples for {batches} batches. Leave some out."
        )
    size = len(inputs) // batches
    classes = count_classes(model, loss_fn, inputs[:size], targets)
    others = None if public is None else _examples(public, device, "public")
    shown = inputs if others is None else others[0]
    data = _in_units(inputs, targets, normalization, classes, name, shown)
    prior = _prior((inputs, targets), others, labels_known)
    private = others is None and normalization is None
    outside = float(inputs.min()) < 0 or float(inputs.max()) > 1
    return Subject(model, loss_fn, data, size, others, prior, local, not (private and outside))


def _device(model: nn.Module) -> torch.device:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"Parameter `model` should be a torch.nn.Module. Found {type(model).__name__}."
        )
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _examples(batch: Batch, device: torch.device, name: str) -> Batch:
    inputs, targets = check_batch(batch, name)
    return inputs.to(device), targets.to(device)


def _in_units(
    inputs: Tensor,
    targets: Tensor,
    normalization: Dataset | NormalizationLike,
    classes: int,
    name: str,
    shown: Tensor,
) -> Dataset:
    """The examples in units; where these are not told, by the range of the examples `shown`."""
    if isinstance(normalization, Dataset):
        mean, std = normalization.mean, normalization.std
    else:
        stated = resolve_normalization(normalization)
        mean, std = stated or observed_normalization(shown.cpu().float())
    return Dataset(inputs, targets, mean, std, num_classes=classes, name=name)


def _prior(private: Batch, public: Batch | None, labels_known: bool) -> GaussianPrior | None:
    """A Gaussian fitted to public examples; to the private ones where there are no others.

    Within classes where these have several examples that vary, if the attacker is told the labels.
    """
    (samples, targets), kind = (private, "the audited") if public is None else (public, "other")
    if len(samples) < 2 or samples[0].numel() > PRIOR_LIMIT:
        return None
    for labels in (targets, None) if labels_known else (None,):
        try:
            fitted = GaussianPrior.fit(samples, labels=labels)
        except ValueError:  # one example of each class, or examples that are all alike
            continue
        within = "" if labels is None else " within classes"
        return replace(fitted, name=f"Gaussian{within} fitted to {len(samples)} {kind} examples")
    return None

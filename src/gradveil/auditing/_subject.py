"""The subject of an audit: model, private batches and public knowledge, checked once."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradveil._batches import Task, check_examples, check_pair
from gradveil._checks import check_count, check_kind
from gradveil._random import numbered_stream
from gradveil.attacks import LocalSteps
from gradveil.data import (
    IDENTITY,
    Dataset,
    NormalizationLike,
    TableLayout,
    observed_normalization,
    resolve_normalization,
)
from gradveil.denoising import LearnedPriors
from gradveil.messages import GradientMessage, LocalUpdateMessage, LossFunction, gradient_of
from gradveil.models import count_outputs
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
    def task(self) -> Task:
        """Whether targets are class labels ("classification"), "numbers" or several "labels"."""
        return self.data.task

    @property
    def tokens(self) -> bool:
        """Whether inputs are the ids of tokens."""
        return self.data.tokens

    @property
    def layout(self) -> TableLayout | None:
        """The columns of a table with categories; `None` for all else."""
        return self.data.layout

    @property
    def is_image(self) -> bool:
        """Whether examples are images (channels, height, width)."""
        return self.data.inputs.dim() == 4 and not self.tokens

    @property
    def input_range(self) -> tuple[Tensor, Tensor] | None:
        """The least and the largest value of inputs that an attacker can know; tokens have none."""
        return self.data.range if self.range_is_public and not self.tokens else None

    @property
    def guess(self) -> Tensor:
        """What one guesses of an example without any message: the mean of the public ones.

        Of tokens, the most frequent one in each place.
        """
        known = self.data.inputs if self.public is None else self.public[0]
        return known.mode(0).values if self.tokens else known.mean(0)

    def message(self, targets: Tensor) -> GradientMessage | LocalUpdateMessage:
        """What a client with these targets would send."""
        if self.local is None:
            return gradient_of(self.data.inputs)(self.model, self.loss_fn, targets)
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
    layout: TableLayout | None = None,
) -> Subject:
    """Check what the user handed in; `batch` is cut into `batches` of equal size.

    Where attackers are told class labels, the prior is that within classes. A layout is that of
    the rows of a table; a data set as the normalisation brings its own.
    """
    device = _device(model)
    inputs, targets = _examples(batch, device, "batch")
    check_count(batches, "batches")
    if local is not None:
        check_kind(local, "local", LocalSteps, "Use for example `LocalSteps(lr=0.1, steps=2)`.")
        _check_numbers(inputs)
    if len(inputs) % batches:
        raise ValueError(
            f"Parameter `batches` should divide the number of examples. Found {len(inputs)}"
            f" examples for {batches} batches. Leave some out."
        )
    size = len(inputs) // batches
    classes = count_outputs(model, loss_fn, inputs[:size], targets)
    others = None if public is None else _examples(public, device, "public")
    _check_alike((inputs, targets), others)
    shown = inputs if others is None else others[0]
    data = _in_units(inputs, targets, normalization, classes, name, shown)
    data = data if layout is None else replace(data, layout=layout)
    within = labels_known and data.task == "classification"
    prior = None if data.tokens else _prior((inputs, targets), others, within)
    private = others is None and normalization is None and not data.tokens
    outside = float(inputs.min()) < 0 or float(inputs.max()) > 1
    return Subject(model, loss_fn, data, size, others, prior, local, not (private and outside))


def _device(model: nn.Module) -> torch.device:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"Parameter `model` should be a torch.nn.Module. Found {type(model).__name__}."
        )
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _examples(batch: Batch, device: torch.device, name: str) -> Batch:
    tokens = gradient_of(check_pair(batch, name)[0]).takes_tokens
    inputs, targets = check_examples(batch, name, tokens=tokens)
    return inputs.to(device), targets.to(device)


def _check_numbers(inputs: Tensor) -> None:
    if not inputs.is_floating_point():
        raise ValueError(
            "Parameter `local` should be left out for tokens: FedAvg's update is not supported for"
            f" integer inputs. Found inputs of {inputs.dtype}."
        )


def _check_alike(private: Batch, public: Batch | None) -> None:
    """Require public examples of the kind of the private ones."""
    for what, own, other in zip(("inputs", "targets"), private, public or private, strict=True):
        if (own.dtype, own.shape[1:]) != (other.dtype, other.shape[1:]):
            raise ValueError(
                f"Parameter `public` should hold {what} like the private ones, {own.dtype} of shape"
                f" {tuple(own.shape[1:])} each. Found {other.dtype} of {tuple(other.shape[1:])}."
            )


def _in_units(
    inputs: Tensor,
    targets: Tensor,
    normalization: Dataset | NormalizationLike,
    classes: int,
    name: str,
    shown: Tensor,
) -> Dataset:
    """The examples in units; where these are not told, by the range of the examples `shown`."""
    layout = None
    if isinstance(normalization, Dataset):
        mean, std, layout = normalization.mean, normalization.std, normalization.layout
    elif not inputs.is_floating_point():
        mean, std = IDENTITY
    else:
        stated = resolve_normalization(normalization)
        mean, std = stated or observed_normalization(shown.cpu().float())
    return Dataset(inputs, targets, mean, std, num_classes=classes, name=name, layout=layout)


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

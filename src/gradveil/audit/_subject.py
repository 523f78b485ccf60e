"""The subject of an audit: model, private batches and public knowledge, checked once."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradveil._checks import WrongValue, check_examples, check_kind, check_pair
from gradveil._random import numbered_stream
from gradveil.data import (
    IDENTITY,
    Dataset,
    NormalizationLike,
    TableLayout,
    observed_normalization,
    resolve_normalization,
)
from gradveil.denoising import LearnedPriors
from gradveil.federated import Federation
from gradveil.messages import (
    AdaptedModel,
    GradientMessage,
    LocalSteps,
    LocalUpdateMessage,
    LossFunction,
    gradient_of,
)
from gradveil.models import count_outputs
from gradveil.theory import GaussianPrior

Batch = tuple[Tensor, Tensor]

POPULATION = 8
"""Batches over which the information of a bound is averaged."""

PRIOR_LIMIT = 4096
"""Up to how many entries of an example a Gaussian prior is fitted."""


@dataclass(frozen=True)
class Subject:
    """What is audited: a model, and examples, of which some are private."""

    model: nn.Module
    """Any model; never modified."""
    loss_fn: LossFunction
    """Maps (outputs, targets) to one number."""
    data: Batch
    """The private inputs and their targets: class labels, several labels for each example
    (segmentation, sequences), or numbers. Inputs may be the ids of tokens."""
    public: Batch | None = None
    """Other examples with targets: plans, priors and the training come from them. Without them all
    use the private ones, and say so."""
    normalization: Dataset | NormalizationLike = None
    """The way back to [0, 1] units, as for `gradveil.score`; from the observed range if `None`."""
    output: str | int | None = None
    """The key or the number of the output that the loss takes, where the model returns several."""
    layout: TableLayout | None = None
    """The columns of a table with categories."""
    name: str = "data"
    model_name: str = ""
    """The class of the model if empty."""
    weights: str = "as given"
    """"untrained", "as given", or the file that they came from."""


@dataclass(frozen=True)
class Audited:
    """A subject in a federation, checked: the private batches, and what everybody may know."""

    model: nn.Module
    loss_fn: LossFunction
    data: Dataset
    """The private examples, with their units."""
    batch_size: int
    public: Batch | None
    """Other examples: the prior and the training come from them."""
    prior: GaussianPrior | LearnedPriors | None
    """Fitted, or what a denoiser learned from public examples: that is for bounds alone."""
    local: LocalSteps | None
    """FedAvg's local steps; `None`: gradients are sent."""
    range_is_public: bool = True
    """Whether the range of inputs comes from elsewhere than the private examples."""

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
    def known(self) -> Batch:
        """The public examples; the private ones where there are no others."""
        return self.public or (self.data.inputs, self.data.targets)

    @property
    def is_image(self) -> bool:
        """Whether examples are images (channels, height, width)."""
        return self.data.inputs.dim() == 4 and not self.data.tokens

    @property
    def input_range(self) -> tuple[Tensor, Tensor] | None:
        """The least and the largest value of inputs that an attacker can know; tokens have none."""
        return self.data.range if self.range_is_public and not self.data.tokens else None

    def message(self, targets: Tensor) -> GradientMessage | LocalUpdateMessage:
        """What a client with these targets would send."""
        if self.local is None:
            return gradient_of(self.data.inputs)(self.model, self.loss_fn, targets)
        return self.local.message(self.model, self.loss_fn, targets)


def checked_subject(
    subject: Subject, federation: Federation, *, labels_known: bool = True
) -> Audited:
    """Check what the user handed in; the examples are cut into batches of the federation's size.

    Where attackers are told class labels, the prior is that within classes. A layout is that of
    the rows of a table; a data set as the normalisation brings its own.
    """
    check_kind(subject, "subject", Subject, "Use `Subject(model, loss_fn, data)`.")
    check_kind(federation, "federation", Federation, "Use for example `Federation(rounds=10)`.")
    check_kind(subject.model, "model", nn.Module)
    model, local = subject.model, federation.local
    model = model if subject.output is None else AdaptedModel(model, subject.output)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    inputs, targets = _examples(subject.data, device, "data")
    if local is not None and not inputs.is_floating_point():
        expected = "be left out for tokens: FedAvg's update is not supported for integer inputs"
        raise WrongValue("local", expected, f"inputs of {inputs.dtype}")
    size = len(inputs) if federation.batch_size is None else federation.batch_size
    if len(inputs) % size:
        found = f"{len(inputs)} examples for batches of {size}"
        expected = "divide the number of examples"
        raise WrongValue("batch_size", expected, found, "Leave some out.")
    classes = count_outputs(model, subject.loss_fn, inputs[:size], targets)
    others = None if subject.public is None else _examples(subject.public, device, "public")
    for own, other in zip((inputs, targets), others or (inputs, targets), strict=True):
        if (own.dtype, own.shape[1:]) != (other.dtype, other.shape[1:]):
            what = "inputs" if own is inputs else "targets"
            wanted = f"{own.dtype} of shape {tuple(own.shape[1:])} each"
            found = f"{other.dtype} of {tuple(other.shape[1:])}"
            raise WrongValue("public", f"hold {what} like the private ones, {wanted}", found)
    normalization, layout = subject.normalization, subject.layout
    if isinstance(normalization, Dataset):
        mean, std, layout = normalization.mean, normalization.std, layout or normalization.layout
    elif not inputs.is_floating_point():
        mean, std = IDENTITY
    else:
        shown = inputs if others is None else others[0]
        given = resolve_normalization(normalization)
        mean, std = given or observed_normalization(shown.cpu().float())
    data = Dataset(
        inputs, targets, mean, std, num_classes=classes, name=subject.name, layout=layout
    )
    within = labels_known and data.task == "classification"
    prior = None if data.tokens else _prior((inputs, targets), others, within)
    stated = others is not None or normalization is not None or data.tokens
    range_is_public = stated or (float(inputs.min()) >= 0 and float(inputs.max()) <= 1)
    return Audited(model, subject.loss_fn, data, size, others, prior, local, range_is_public)


def _examples(batch: Batch, device: torch.device, name: str) -> Batch:
    tokens = gradient_of(check_pair(batch, name)[0]).takes_tokens
    inputs, targets = check_examples(batch, name, tokens=tokens)
    return inputs.to(device), targets.to(device)


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

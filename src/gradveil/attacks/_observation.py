"""What an attacker sees and is granted; the private batch is not part of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._checks import (
    TASKS,
    Task,
    WrongValue,
    check_callable,
    check_choice,
    check_classes,
    check_count,
    check_examples,
    check_finite,
    check_flag,
    check_kind,
    check_labels,
    check_pair,
    check_range,
    check_shape,
    check_structure,
    check_targets,
    check_values,
    task_of,
)
from gradveil._random import generator_or_fresh
from gradveil._tensors import Tensors
from gradveil.data import TableLayout
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism, check_mechanism
from gradveil.messages import (
    GradientMessage,
    LocalSteps,
    LossFunction,
    Message,
    TokenGradient,
    gradient_of,
    trainable_parameters,
)


@dataclass(frozen=True)
class ThreatModel:
    """What the attacker knows. The model, the loss, the batch size and the shapes are always known.

    >>> ThreatModel(mechanism="known").labels
    'known'
    """

    labels: str = "known"
    """"known" (in the client's order), "counts" (how often each class occurs), or "unknown". Other
    targets than class labels are meant, too, and have no counts."""
    mechanism: str = "unknown"
    """"unknown"; "known" (Kerckhoffs: the defense and its settings, not what it drew or planned
    from the private batch; a plan that is not private is known to everybody); or "realised" (the
    worst case: the very noise levels or mask of a private plan, which nobody sends)."""
    statistics: bool = True
    """Whether the range of the normalised inputs is known."""
    server: str = "honest"
    """Or "malicious": it sends whatever model serves it (`Imprint.plant`, `Fishing.plant`)."""

    def __post_init__(self) -> None:
        check_choice(self.labels, "labels", ("known", "counts", "unknown"))
        check_choice(self.mechanism, "mechanism", ("unknown", "known", "realised"))
        check_flag(self.statistics, "statistics")
        check_choice(self.server, "server", ("honest", "malicious"))

    def check_task(self, task: Task) -> None:
        """Require knowledge that there can be of these targets: counts are those of classes."""
        if self.labels == "counts" and task != "classification":
            where = "where targets are not one class label for each example"
            expected = f"have labels='known' or 'unknown' {where}"
            raise WrongValue("threat", expected, f"labels='counts' with {task}")


@dataclass(frozen=True)
class Observation:
    """What was sent, and what the threat model grants.

    Make one with `observe`, which plays the client, or by hand from a real message. `seen` in the
    examples of attacks is this one, `seen_text` one of the tokens [[3, 1, 4]]:

    >>> model = build_model("mlp", sizes=[3, 8, 2])
    >>> private = torch.tensor([[0.2, 0.7, 0.4]]), torch.tensor([1])
    >>> seen = observe(model, cross_entropy, private, NoDefense(), num_classes=2)
    >>> seen.batch_size, seen.input_shape, sorted(seen.sent)
    (1, (3,), ['layers.1.bias', 'layers.1.weight', 'layers.3.bias', 'layers.3.weight'])
    """

    model: nn.Module
    """As the client got it; attacks never modify it."""
    loss_fn: LossFunction
    sent: Tensors
    batch_size: int
    input_shape: tuple[int, ...]
    """Of one example, without the batch."""
    num_classes: int
    """How many classes there are; of no use where targets are not class labels."""
    low: Tensor | None = None
    """The least value of each input entry, broadcast to `input_shape`; `None`: not known."""
    high: Tensor | None = None
    labels: Tensor | None = None
    """The targets in the client's order, where the threat model grants them: labels mostly."""
    label_counts: Tensor | None = None
    """How often each class occurs, where that is granted (also with `labels`)."""
    defense: Defense | None = None
    """The algorithm and its settings, where the threat model grants them."""
    mechanism: AnyMechanism | None = None
    """A mechanism the attacker knows: a public plan, or the realised one in the worst case."""
    local: LocalSteps | None = None
    """FedAvg's local steps; `None`: the message is a gradient."""
    server: str = "honest"
    """As in `ThreatModel`: whether the model may be one that the server made for its attack."""
    tokens: bool = False
    """Whether the inputs are integers: rows of tables that the model looks up."""
    targets_are_inputs: bool = False
    """Whether the targets are the inputs, as a language model's: then nobody is told of them."""
    task: Task = "classification"
    """What the targets are: class labels, "numbers", or several "labels" for each example."""
    target_shape: tuple[int, ...] = ()
    """Of one example's targets; () for a class label."""
    layout: TableLayout | None = None
    """Which entries of a row are which columns, where inputs are rows of a table that has one."""

    def __post_init__(self) -> None:
        check_count(self.batch_size, "batch_size")
        check_classes(self.num_classes)
        check_kind(self.sent, "sent", Mapping, "Give tensors by parameter name.")
        if self.sent:  # what is missing, the model tells
            check_values(self.sent, "sent")
        check_finite(self.sent, "sent")
        check_structure(self.sent, trainable_parameters(self.model), "sent", "model")
        check_shape(self.input_shape, "input_shape")
        check_range(self.low, self.high)
        check_callable(self.loss_fn, "loss_fn", "Use for example cross_entropy.")
        if self.defense is not None:
            check_kind(self.defense, "defense", Defense, "Use for example `NoDefense()`.")
        if self.mechanism is not None:
            check_mechanism(self.mechanism)
        if self.local is not None:
            check_kind(self.local, "local", LocalSteps, "Use `LocalSteps(lr=0.1, steps=2)`.")
        check_choice(self.task, "task", TASKS)
        if self.labels is not None:
            check_targets(self.labels, self.batch_size, "labels")
            if self.task == "classification":
                check_labels(self.labels, "labels")
        if (counts := self.label_counts) is not None:
            check_labels(counts, "label_counts")
            total = (self.num_classes, self.batch_size)
            if (*counts.shape, int(counts.sum())) != total:
                expected = "hold {} counts that add up to the batch size {}".format(*total)
                found = f"shape {tuple(counts.shape)} and sum {int(counts.sum())}"
                raise WrongValue("label_counts", expected, found)

    def message(self, targets: Any) -> Message:
        """What these targets would make before noise, as a function of the inputs.

        A defense that is known and that clips, for example, is a part of it.
        """
        plain = self.plain_message(targets)
        return plain if self.defense is None else self.defense.prepared(plain)

    def plain_message(self, targets: Any) -> Message:
        """The same without any defense."""
        if self.tokens:
            return TokenGradient(self.model, self.loss_fn, targets)
        if self.local is None:
            return GradientMessage(self.model, self.loss_fn, targets)
        return self.local.message(self.model, self.loss_fn, targets)


def check_observation(observation: object, *, tokens: bool = False) -> None:
    """Require an Observation, of numbers or of tokens."""
    check_kind(observation, "observation", Observation, "Make one with `observe`.")
    assert isinstance(observation, Observation)
    if observation.tokens != tokens:
        wanted, found = ("tokens", "numbers") if tokens else ("numbers", "tokens")
        other = "`TokenRows` or `SpanCheck`" if observation.tokens else "`InvertingGradients`"
        raise WrongValue("observation", f"be of inputs that are {wanted}", found, f"Use {other}.")


def check_known(observation: Observation) -> None:
    if observation.defense is None and observation.mechanism is None:
        advice = "Use ThreatModel(mechanism='known') or 'realised', or an unaware attack."
        raise WrongValue("observation", "tell the defense or the mechanism", "neither", advice)


def observe(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: tuple[Tensor, Tensor],
    defense: Defense,
    *,
    threat: ThreatModel | None = None,
    num_classes: int | None = None,
    input_range: tuple[Tensor, Tensor] | None = None,
    local: LocalSteps | None = None,
    layout: TableLayout | None = None,
    generator: torch.Generator | None = None,
) -> Observation:
    """Play the client: defend the batch's message and keep only what the attacker may have.

    Args:
        batch: The private inputs and their targets: class labels, numbers, or several labels for
            each example. Inputs may be the ids of tokens; then targets may be the ids again (a
            language model).
        threat: What the attacker is granted; the default is labels known, mechanism unknown.
        num_classes: Needed where targets are class labels.
        input_range: The least and the largest value of normalised inputs.
        local: FedAvg's local steps; a gradient is sent if `None`.
        layout: Of a table, which is known to everybody.
    """
    threat = ThreatModel() if threat is None else threat
    check_kind(threat, "threat", ThreatModel, "Use for example `ThreatModel(labels='unknown')`.")
    check_kind(defense, "defense", Defense, "Use for example `NoDefense()`.")
    if num_classes is not None:
        check_classes(num_classes)
    tokens = gradient_of(check_pair(batch, "batch")[0]).takes_tokens
    inputs, targets = check_examples(batch, num_classes=num_classes, tokens=tokens)
    if tokens and local is not None:
        expected = "be left out for tokens: FedAvg's update is not supported for integer inputs"
        raise WrongValue("local", expected, str(local), assigned=True)
    low, high = (None, None) if input_range is None else check_pair(input_range, "input_range")
    task, counts, known = task_of(targets), None, threat.mechanism != "unknown"
    threat.check_task(task)
    if task == "classification":
        check_classes(num_classes)
        if threat.labels != "unknown":
            counts = torch.bincount(targets, minlength=num_classes or 1)
    blank = Observation(
        model,
        loss_fn,
        trainable_parameters(model),
        len(inputs),
        tuple(inputs.shape[1:]),
        1 if num_classes is None else num_classes,
        low=low if threat.statistics else None,
        high=high if threat.statistics else None,
        labels=targets if threat.labels == "known" else None,
        label_counts=counts,
        defense=defense.without_memory() if known else None,
        local=local,
        server=threat.server,
        tokens=tokens,
        task=task,
        target_shape=tuple(targets.shape[1:]),
        layout=layout,
    )
    if tokens and inputs.shape == targets.shape and torch.equal(inputs, targets):
        blank = replace(blank, targets_are_inputs=True, labels=None)
    defended = defense.respond(blank.plain_message(targets), inputs, generator_or_fresh(generator))
    told = threat.mechanism == "realised" or (known and not defense.about.private)
    return replace(blank, sent=defended.sent, mechanism=defended.mechanism if told else None)

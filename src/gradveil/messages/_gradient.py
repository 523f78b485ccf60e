"""FedSGD's message, the gradient, also that of token ids, and FedAvg's, the weight change."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from inspect import signature
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vjp
from torch.overrides import TorchFunctionMode

from gradveil._checks import (
    WHOLE,
    WrongType,
    WrongValue,
    check_at_most,
    check_count,
    check_flag,
    check_not_negative,
    check_positive,
)
from gradveil._tensors import Tensors

from ._functional import (
    FunctionalLoss,
    LossFunction,
    call_with,
    check_match,
    derivative,
    is_transformed,
    leaves,
    unwritten,
)
from ._layers import tensors_in
from ._mixing import couples_examples, is_sum_over_examples, loss_reduction, rows_are_independent
from ._protocol import Message, explained

_INDEPENDENT: WeakKeyDictionary[nn.Module, set[Any]] = WeakKeyDictionary()
"""For which shapes and modes a model was found to treat examples one by one."""


class GradientMessage:
    """g(x) = ∇_Θ L(x, Θ), the gradient of the loss with respect to the trainable parameters.

    Args:
        model: Any module. It is never modified; its buffers and its mode are respected. Frozen
            parameters are left out, tied ones appear once, unused ones have gradient 0.
        loss_fn: Maps (outputs, targets) to one number, a mean or a sum over examples.
        targets: The labels of the batch, in whatever form the loss takes them.
        separable: Whether examples enter the gradient as a sum. Found out by itself if `None`:
            layers that mix examples (BatchNorm in training mode) and losses that do are noticed.
        seed: For layers that draw random numbers (dropout in training mode).

    >>> model = nn.Linear(3, 2)
    >>> message = GradientMessage(model, nn.functional.cross_entropy, torch.tensor([0, 1]))
    >>> {name: tuple(g.shape) for name, g in message(torch.ones(2, 3)).items()}
    {'weight': (2, 3), 'bias': (2,)}
    """

    takes_tokens = False
    """Whether the inputs are integers; `TokenGradient` takes them."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        targets: Any,
        *,
        separable: bool | None = None,
        seed: int = 0,
    ) -> None:
        if separable is not None:
            check_flag(separable, "separable")
        self.loss = FunctionalLoss(model, loss_fn, seed)
        self.targets = targets
        self.declared_separable = separable

    def at(self, parameters: Tensors) -> "GradientMessage":
        """The message of a model that has moved to these parameters."""
        moved = copy(self)
        moved.loss = self.loss.at(parameters)
        return moved

    def of(self, targets: Any) -> "GradientMessage":
        """The message of other examples, with these targets."""
        other = copy(self)
        other.targets = targets
        return other

    def parts(self, inputs: Tensor, size: int) -> Iterator[tuple["GradientMessage", Tensor]]:
        """Messages of at most `size` examples, with their inputs, that add up to this one.

        For each the outputs of the other examples are constants: so every loss that is a sum over
        examples is cut right, whatever its weights. A model that mixes examples, draws random
        numbers or does not return one row for each example is not cut.
        """
        check_match(inputs, self.targets, tokens=self.takes_tokens)
        outputs, drew = None, False
        if size < len(inputs) and not couples_examples(self.loss.model):
            with torch.no_grad():
                outputs, drew = self.loss.outputs_and_draws(self.parameters, inputs)
        if drew or not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
            yield self, inputs
            return
        size = math.ceil(len(inputs) / math.ceil(len(inputs) / size))  # parts of nearly one size
        for start in range(0, len(inputs), size):
            end = start + size
            yield self._beside(outputs[:start], outputs[end:]), inputs[start:end]

    def _beside(self, before: Tensor, after: Tensor) -> "GradientMessage":
        """The message of the examples between those that have these outputs."""
        loss_fn, targets = self.loss.loss_fn, self.targets

        def loss_beside(own: Tensor, _: None) -> Tensor:
            rows = own.reshape(-1, *before.shape[1:])  # a model may squeeze a single row
            return loss_fn(torch.cat([before, rows, after]), targets)

        beside = self.of(None)
        beside.loss = copy(self.loss)
        beside.loss.loss_fn = loss_beside
        return beside

    @property
    def reduction(self) -> str | None:
        """ "mean" or "sum", where the loss says so."""
        return loss_reduction(self.loss.loss_fn)

    @property
    def parameters(self) -> Tensors:
        """The trainable parameters, by name, as they are now."""
        return self.loss.parameters

    def separates(self, inputs: Tensor) -> bool:
        """Whether examples enter as a sum, g(x) = Σ_b g_b(x_b), as declared or found out.

        What layers and loss do not say of themselves is tested on these inputs.
        """
        if self.declared_separable is not None:
            return self.declared_separable
        model = self.loss.model
        if couples_examples(model):
            return False
        known = _INDEPENDENT.setdefault(model, set())
        key = (inputs.shape[1:], tuple(module.training for module in model.modules()))
        if len(inputs) > 1 and key not in known:  # one mixes with nothing, and says nothing of more
            if not rows_are_independent(self.loss, self.parameters, inputs[:2]):
                return False  # not remembered: it may be these inputs' or weights' failure
            known.add(key)
        if self.reduction is not None:
            return True
        with torch.no_grad():
            outputs = self.loss.outputs(self.parameters, inputs)
        return is_sum_over_examples(lambda o: self.loss.loss_of_outputs(o, self.targets), outputs)

    def __call__(self, inputs: Tensor) -> Tensors:
        """The gradient, by parameter name; differentiable with respect to the inputs."""
        check_match(inputs, self.targets, tokens=self.takes_tokens)
        parameters = self.parameters
        if not is_transformed(inputs, *parameters.values()):
            with explained(self, inputs), unwritten(self.loss.model):
                recorded = self._recorded(parameters, inputs)
            if recorded is not None:
                return recorded
        gradients: Tensors = grad(self.loss)(parameters, inputs, self.targets)
        return gradients

    def values(self, inputs: Tensor) -> Tensors:
        """The same numbers for a client that only sends them."""
        check_match(inputs, self.targets, tokens=self.takes_tokens)
        if self.loss.is_plain and not is_transformed(inputs):
            with explained(self, inputs), unwritten(self.loss.model), torch.enable_grad():
                loss = self.loss.of_model(inputs.detach(), self.targets)
                values = derivative(loss, leaves(self.loss.model))
            if values is not None:
                return values
        with torch.no_grad():
            return self(inputs.detach())

    def _recorded(self, given: Tensors, inputs: Tensor) -> Tensors | None:
        """The gradient by plain autograd, which costs half a transform's time on a small batch."""
        followed = any(one.requires_grad for one in tensors_in(inputs, self.targets, given))
        create_graph = torch.is_grad_enabled() and followed
        own = {n: p if p.requires_grad else p.detach().requires_grad_() for n, p in given.items()}
        with torch.enable_grad():
            view = inputs.view_as(inputs)  # which the loss copies, as it does not copy a leaf
            return derivative(self.loss(own, view, self.targets), own, create_graph=create_graph)

    def output_gradient(self, inputs: Tensor) -> Tensor:
        """δ = ∇_outputs L, one row for each example."""
        outputs = self.loss.outputs(self.parameters, inputs)
        delta: Tensor = grad(self.loss.loss_of_outputs)(outputs, self.targets)
        return delta

    def example_gradient(self, example: Tensor, output_gradient: Tensor) -> Tensors:
        """g_b = (∂ outputs_b / ∂Θ)ᵀ δ_b, what one example adds to the message."""

        def outputs_of(parameters: Tensors) -> Tensor:
            outputs, drew = self.loss.outputs_and_draws(parameters, example[None])
            if drew:
                raise WrongValue(
                    "model",
                    "draw no random numbers where examples are taken one by one",
                    "that it does (dropout in training mode?)",
                    "Use `model.eval()`, or leave `separable` out.",
                )
            alone: Tensor = outputs
            return alone

        pull_back = vjp(outputs_of, self.parameters)[1]
        gradients: Tensors = pull_back(output_gradient.unsqueeze(0))[0]
        return gradients


@dataclass(frozen=True)
class LocalSteps:
    """FedAvg's local training, public in every federation: what `LocalUpdateMessage` takes.

    >>> LocalSteps(lr=0.1, steps=5).batch_size is None
    True
    """

    lr: float
    steps: int
    batch_size: int | None = None
    """Examples in a local mini-batch; the client's whole batch if `None`."""
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self.lr, "lr")
        check_at_most(self.lr, "lr")
        check_count(self.steps, "steps")
        if self.batch_size is not None:
            check_count(self.batch_size, "batch_size")
        check_not_negative(self.momentum, "momentum")
        if self.momentum >= 1:
            raise WrongValue("momentum", "be in [0, 1)", str(self.momentum), assigned=True)

    def message(
        self, model: nn.Module, loss_fn: LossFunction, targets: Tensor, *, seed: int = 0
    ) -> "LocalUpdateMessage":
        """The weight change that these steps make; `seed` as in `LocalUpdateMessage`."""
        return LocalUpdateMessage(model, loss_fn, targets, **asdict(self), seed=seed)


class LocalUpdateMessage:
    """Θ_T - Θ_0 after T steps of local SGD, as a differentiable function of the inputs.

    Step t takes mini-batch t of the batch, in order and again from the start after the last, and
    v ← momentum · v + ∇L, Θ ← Θ - lr · v, as `torch.optim.SGD` does. Every step sees parameters
    that earlier examples have moved, so examples do not enter as a sum.

    Args:
        model: Any module; never modified.
        loss_fn: Maps (outputs, targets) to one number.
        targets: A tensor with the label of each example.
        lr, steps, batch_size, momentum: As in `LocalSteps`.
        seed: For layers that draw random numbers (dropout in training mode): the same ones in
            every step.

    >>> message = LocalUpdateMessage(
    ...     nn.Linear(3, 2), nn.functional.cross_entropy, torch.tensor([0, 1]), lr=0.1, steps=2)
    >>> sorted(message(torch.ones(2, 3)))
    ['bias', 'weight']
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        targets: Tensor,
        *,
        lr: float,
        steps: int,
        batch_size: int | None = None,
        momentum: float = 0.0,
        seed: int = 0,
    ) -> None:
        LocalSteps(lr, steps, batch_size, momentum)  # checks them
        if not isinstance(targets, Tensor):
            found, advice = type(targets).__name__, "Convert it with torch.as_tensor."
            raise WrongType("targets", "be a torch.Tensor, to cut into mini-batches", found, advice)
        self.loss = FunctionalLoss(model, loss_fn, seed)
        self.targets = targets
        self.lr, self.steps, self.batch_size, self.momentum = lr, steps, batch_size, momentum

    @property
    def parameters(self) -> Tensors:
        """The trainable parameters before the local steps."""
        return self.loss.parameters

    def __call__(self, inputs: Tensor) -> Tensors:
        """The weight change, by parameter name; differentiable with respect to the inputs."""
        return self.after_steps(inputs, lambda gradient, batch: gradient(batch))

    def after_steps(
        self, inputs: Tensor, step_gradient: Callable[[GradientMessage, Tensor], Tensors]
    ) -> Tensors:
        """The weight change, each step's gradient found from its message and mini-batch."""
        batches, start = self.batches(inputs), self.parameters
        now, velocity = start, {name: torch.zeros_like(p) for name, p in start.items()}
        for step in range(self.steps):
            batch, targets = batches[step % len(batches)]
            gradient = step_gradient(self.gradient_at(now, targets), batch)
            now, velocity = self.advance(now, velocity, gradient)
        return {name: now[name] - start[name] for name in start}

    def gradient_at(self, parameters: Tensors, targets: Any) -> GradientMessage:
        """The gradient that a step at these parameters takes."""
        message = GradientMessage(self.loss.model, self.loss.loss_fn, targets)
        message.loss = self.loss.at(parameters)
        return message

    def of(self, targets: Tensor) -> "LocalUpdateMessage":
        """The message of other examples, with these targets."""
        other = copy(self)
        other.targets = targets
        return other

    def advance(
        self, now: Tensors, velocity: Tensors, gradient: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Parameters and velocity after one step of SGD."""
        velocity = {name: self.momentum * velocity[name] + gradient[name] for name in now}
        return {name: now[name] - self.lr * velocity[name] for name in now}, velocity

    def batches(self, inputs: Tensor) -> list[tuple[Tensor, Any]]:
        """The mini-batches that the steps take in turn."""
        check_match(inputs, self.targets)
        size = self.batch_size or len(inputs)
        return list(zip(inputs.split(size), self.targets.split(size), strict=True))


class Lookup(NamedTuple):
    """One call of an embedding on the inputs, or on a part of them."""

    number: int
    """Of the call, among all calls of embeddings."""
    table: Tensor
    """The weight whose rows are read."""
    places: Tensor
    """Which entries of the flattened inputs are looked up."""
    embeddings: Tensor
    """The rows that were read, in the shape that the model goes on with."""


class _Lookups(TorchFunctionMode):
    """Notes each lookup of the given ids, or adds to what some calls of embeddings return.

    A lookup of the ids is one of an index that shares their memory: of the ids themselves, or of a
    view of them. Positions, types and masks that a model makes are none.

    Args:
        ids: What the model gets.
        moves: What is added, by the number of the call; lookups are noted where there is nothing.
    """

    def __init__(self, ids: Tensor, moves: Mapping[int, Tensor]) -> None:
        super().__init__()
        self._ids, self._moves, self._calls = ids, moves, 0
        self.found: list[Lookup] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call it; sparse gradients, which torch differentiates once, are made dense."""
        if func is not F.embedding:
            return func(*args, **(kwargs or {}))
        given = signature(func).bind(*args, **(kwargs or {})).arguments
        output, index = func(**{**given, "sparse": False}), given["input"]
        if not self._moves and self._is_of_ids(index):  # in a transform, memory cannot be asked for
            self.found.append(Lookup(self._calls, given["weight"], self._places(index), output))
        move = self._moves.get(self._calls)
        self._calls += 1
        return output if move is None else output + move.reshape(output.shape)

    def _is_of_ids(self, index: Tensor) -> bool:
        return index.untyped_storage().data_ptr() == self._ids.untyped_storage().data_ptr()

    def _places(self, index: Tensor) -> Tensor:
        every = torch.arange(self._ids.numel(), device=self._ids.device)
        return every.as_strided(index.shape, index.stride(), index.storage_offset()).flatten()


class EmbeddedLoss(FunctionalLoss):
    """The loss as a function of embeddings e: the model reads W[ids] + (e - e₀), with e₀ = W[ids].

    So values and derivatives with respect to W and e are all those of the model at e₀.

    Args:
        loss: The loss as a function of ids.
        ids: What the model gets, whatever the embeddings are.
        lookups: Where it reads e; if there are none, they are noted in `found`.
    """

    def __init__(self, loss: FunctionalLoss, ids: Tensor, lookups: Sequence[Lookup] = ()) -> None:
        self.__dict__.update(loss.__dict__)
        self._ids, self._lookups = ids, lookups
        self.found: list[Lookup] = []

    is_plain = False  # type: ignore[assignment]  # the module itself takes ids

    def _call(self, tensors: Tensors, inputs: Tensor) -> Any:
        ids = self._ids.contiguous().clone()
        with _Lookups(ids, self._moves(inputs)) as mode:
            outputs = call_with(self.model, tensors, ids)
        self.found = mode.found
        return outputs

    def _moves(self, embeddings: Tensor) -> dict[int, Tensor]:
        if not self._lookups:
            return {}
        starts = [lookup.embeddings.flatten(1) for lookup in self._lookups]
        parts = embeddings.flatten(1).split([start.shape[1] for start in starts], 1)
        pairs = zip(self._lookups, parts, starts, strict=True)
        return {lookup.number: e - start for lookup, e, start in pairs}


def find_lookups(loss: FunctionalLoss, ids: Tensor) -> list[Lookup]:
    """Where a model looks up these ids; an error if it does so nowhere."""
    watched = EmbeddedLoss(loss, ids)
    with torch.no_grad():
        watched.outputs(loss.parameters, ids)
    if not watched.found:
        raise WrongType(
            "model",
            "look up `inputs` in an `nn.Embedding`, as they are or a part of them, where they are"
            " integers",
            f"`inputs.dtype = {ids.dtype}` and no lookup in {type(loss.model).__name__}",
            "Convert them with `.float()`, or pass their embeddings to GradientMessage.",
        )
    for lookup in watched.found:
        if lookup.embeddings.shape[0] != len(ids):
            expected = "keep examples first where it looks up its inputs"
            shape = tuple(lookup.embeddings.shape)
            found = f"embeddings of shape {shape} for {len(ids)} examples"
            raise WrongValue("model", expected, found, "Transpose after the lookup.")
    return watched.found


class TokenGradient(GradientMessage):
    """g(ids) = ∇_Θ L, for inputs that are rows of tables: `GradientMessage` for integers.

    Integers have no derivative. What is differentiated is the message as a function of the
    embeddings e = W[ids] that the model reads, the ids being held: sensitivities and bounds are
    with respect to e, shape (examples, ..., width). The table's own gradient, whose row v is
    Σ ∂L/∂e_p over the places p with token v, is a part of the message, and moves with e, too.

    Which rows are not 0 tells the tokens by itself, and no derivative shows that: so the squared
    sensitivities of a table are spread evenly over its rows (`over_rows`), as for a batch whose
    tokens could be any. No defense then leaves out the rows of tokens that the batch does not use.

    The model has to look up the ids, or a view of them, in an `nn.Embedding`; all else in it
    (positions, padding masks) is taken as it is. Several tables may be used: the embeddings are
    then put side by side, shape (examples, all widths). Arguments are those of `GradientMessage`.

    >>> model = torch.nn.Sequential(torch.nn.Embedding(5, 2), torch.nn.Flatten())
    >>> message = TokenGradient(model, torch.nn.functional.cross_entropy, torch.tensor([0]))
    >>> message(torch.tensor([[3, 1]]))["0.weight"].any(1).tolist()
    [False, True, False, True, False]
    """

    takes_tokens = True

    def embedded(self, ids: Tensor) -> tuple[GradientMessage, Tensor]:
        """The message as a function of the embeddings of these ids, and the embeddings."""
        found = find_lookups(self.loss, ids)
        parts = [lookup.embeddings for lookup in found]
        start = parts[0] if len(parts) == 1 else torch.cat([p.flatten(1) for p in parts], 1)
        loss = EmbeddedLoss(self.loss, ids, found)
        # the ids are held for the whole batch, so examples cannot be taken one by one
        moved = GradientMessage(loss.model, loss.loss_fn, self.targets, separable=False)
        moved.loss = loss
        return moved, start

    def tables(self, ids: Tensor) -> set[str]:
        """The names of the trainable tables in which the ids are looked up."""
        parameters = self.parameters
        read = {id(lookup.table) for lookup in find_lookups(self.loss.at(parameters), ids)}
        return {name for name, parameter in parameters.items() if id(parameter) in read}


def gradient_of(inputs: object) -> type[GradientMessage]:
    """The kind of gradient that takes these inputs: `TokenGradient` for integers."""
    whole = isinstance(inputs, Tensor) and inputs.dtype in WHOLE
    return TokenGradient if whole else GradientMessage


def embedded(message: Message, inputs: Tensor) -> tuple[Message, Tensor]:
    """What can be differentiated: message and inputs, or for tokens those over the embeddings."""
    if not isinstance(message, TokenGradient):
        if getattr(message, "takes_tokens", False):
            raise TypeError(
                "A message of tokens should be a TokenGradient where it is differentiated. Found"
                f" {type(message).__name__}. Its privacy is what its clipping guarantees; for"
                " sensitivities and bounds use noise without clipping."
            )
        return message, inputs
    return message.embedded(inputs)


def over_rows(tensors: Mapping[str, Tensor], message: Message, inputs: Tensor) -> Tensors:
    """Squares with those of tables spread evenly over rows; all others as they are.

    The mean over all ways to give other ids to the tokens of a batch.
    """
    names = message.tables(inputs) if isinstance(message, TokenGradient) else set()
    return {
        name: t.mean(0, keepdim=True).expand(t.shape).contiguous() if name in names else t
        for name, t in tensors.items()
    }


def random_ids(message: GradientMessage, like: Tensor, generator: torch.Generator) -> Tensor:
    """Ids that the model can look up, each as likely as any; of `like` only shape and type count.

    `like` may be of another length: one example says what can be looked up in which place.
    """
    blank = torch.zeros((1, *like.shape[1:]), dtype=like.dtype, device=like.device)
    limits = torch.full((blank.numel(),), torch.inf, dtype=torch.float64, device=like.device)
    for lookup in find_lookups(message.loss, blank):
        limits[lookup.places] = limits[lookup.places].clamp(max=len(lookup.table))
    limits[limits.isinf()] = 1  # never looked up
    shares = torch.rand(
        like.shape, generator=generator, device=generator.device, dtype=torch.float64
    )
    drawn = shares.to(like.device) * limits.reshape(blank.shape)
    return drawn.to(like.dtype)

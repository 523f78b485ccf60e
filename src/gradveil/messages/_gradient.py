"""FedSGD's message: the gradient of the loss on the client's batch."""

import math
from collections.abc import Collection, Iterator
from copy import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import grad, vjp

from gradveil._checks import check_flag
from gradveil._typing import Tensors

from ._explain import explained
from ._functional import (
    FunctionalLoss,
    LossFunction,
    check_match,
    in_double,
    is_transformed,
    requires_grad,
    unwritten,
)
from ._mixing import (
    couples_examples,
    is_sum_over_examples,
    loss_reduction,
    rows_are_independent,
)

_INDEPENDENT: WeakKeyDictionary[nn.Module, dict[Any, bool]] = WeakKeyDictionary()
"""Whether a model treats examples one by one, found out once for each shape and mode."""


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
        self._declared = separable

    def at(self, parameters: Tensors) -> "GradientMessage":
        """The message of a model that has moved to these parameters."""
        moved = copy(self)
        moved.loss = self.loss.at(parameters)
        return moved

    def double(self) -> "GradientMessage":
        """The same message in float64."""
        wide = self.of(in_double(self.targets))
        wide.loss = self.loss.double()
        return wide

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
        outputs = None
        if size < len(inputs) and not couples_examples(self.loss.model):
            with torch.no_grad():
                outputs, drew = self.loss.outputs_and_draws(self.parameters, inputs)
            outputs = None if drew else outputs
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
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
    def declared_separable(self) -> bool | None:
        """Whether examples enter as a sum, as the user said; `None`: nothing was said."""
        return self._declared

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
        if self._declared is not None:
            return self._declared
        model = self.loss.model
        if couples_examples(model):
            return False
        if len(inputs) < 2:  # mixes with nothing, and says nothing of larger batches
            return self.reduction is not None or self._loss_separates(inputs)
        known = _INDEPENDENT.setdefault(model, {})
        key = (inputs.shape[1:], tuple(module.training for module in model.modules()))
        if key not in known:  # a failure is not remembered: it may be these inputs' or weights'
            apart = rows_are_independent(self.loss, self.parameters, inputs[:2])
            if not apart or not self._takes_one(inputs[:1]):
                return False
            known[key] = True
        return self.reduction is not None or self._loss_separates(inputs)

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
        values = None
        if self.loss.is_plain and not is_transformed(inputs):
            with explained(self, inputs), unwritten(self.loss.model), torch.enable_grad():
                values = self._plain(inputs.detach())
        if values is not None:
            return values
        with torch.no_grad():
            return self(inputs.detach())

    def _plain(self, inputs: Tensor) -> Tensors | None:
        """The gradient at the model's own weights; `None` where autograd records nothing."""
        loss = self.loss.of_model(inputs, self.targets)
        if not loss.requires_grad:
            return None
        own = {n: p for n, p in self.loss.model.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(
            loss, list(own.values()), allow_unused=True, materialize_grads=True
        )
        return {name: dense(g) for name, g in zip(own, gradients, strict=True)}

    def _recorded(self, given: Tensors, inputs: Tensor) -> Tensors | None:
        """The gradient by plain autograd, which costs half a transform's time on a small batch.

        `None` where autograd records nothing: in inference mode, or if no parameter enters.
        """
        sources = (inputs, self.targets, *given.values())
        differentiable = torch.is_grad_enabled() and requires_grad(sources)
        own = {n: p if p.requires_grad else p.detach().requires_grad_() for n, p in given.items()}
        with torch.enable_grad():
            view = inputs.view_as(inputs)  # which the loss copies, as it does not copy a leaf
            loss = self.loss(own, view, self.targets)
            if not loss.requires_grad:
                return None
            gradients = torch.autograd.grad(
                loss,
                list(own.values()),
                create_graph=differentiable,
                allow_unused=True,
                materialize_grads=True,
            )
        return {name: dense(g) for name, g in zip(own, gradients, strict=True)}

    def output_gradient(self, inputs: Tensor) -> Tensor:
        """δ = ∇_outputs L, one row for each example."""
        outputs = self.loss.outputs(self.parameters, inputs)
        delta: Tensor = grad(self.loss.loss_of_outputs)(outputs, self.targets)
        return delta

    def example_gradient(
        self, example: Tensor, output_gradient: Tensor, names: Collection[str] | None = None
    ) -> Tensors:
        """g_b = (∂ outputs_b / ∂Θ)ᵀ δ_b, what one example adds to the message; or parts of it."""
        parameters = self.parameters
        wanted = {n: p for n, p in parameters.items() if names is None or n in names}
        pull_back = vjp(
            lambda moved: self._outputs_alone({**parameters, **moved}, example), wanted
        )[1]
        gradients: Tensors = pull_back(output_gradient.unsqueeze(0))[0]
        return gradients

    def _outputs_alone(self, parameters: Tensors, example: Tensor) -> Tensor:
        outputs, drew = self.loss.outputs_and_draws(parameters, example.unsqueeze(0))
        if drew:
            raise ValueError(
                "Parameter `model` should draw no random numbers where examples are taken one by"
                " one. Found that it does (dropout in training mode?). Use `model.eval()`, or"
                " leave `separable` out."
            )
        alone: Tensor = outputs
        return alone

    @torch.no_grad()
    def _takes_one(self, example: Tensor) -> bool:
        """Whether the model returns one row for a single example."""
        try:
            outputs = self.loss.outputs(self.parameters, example)
        except (RuntimeError, ValueError, IndexError):
            return False
        return isinstance(outputs, Tensor) and outputs.shape[:1] == (1,)

    def _loss_separates(self, inputs: Tensor) -> bool:
        with torch.no_grad():
            outputs = self.loss.outputs(self.parameters, inputs)
        return is_sum_over_examples(lambda o: self.loss.loss_of_outputs(o, self.targets), outputs)


def dense(gradient: Tensor) -> Tensor:
    """As it is, or with all rows: `nn.Embedding(sparse=True)` gives those of its tokens only."""
    return gradient.to_dense() if gradient.is_sparse else gradient

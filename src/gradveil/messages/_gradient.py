"""FedSGD's message: the gradient of the loss on the client's batch."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vjp

from gradveil._checks import check_inputs
from gradveil._typing import Tensors

from ._functional import FunctionalLoss, LossFunction, couples_examples
from ._loss import known_to_separate, separates_at


class GradientMessage:
    """g(x) = ∇_Θ L(x, Θ), the gradient of the loss with respect to the trainable parameters.

    Args:
        model: Any module. It is never modified; its buffers and its mode are respected. Frozen
            parameters are left out, tied ones appear once, unused ones have gradient 0.
        loss_fn: Maps (outputs, targets) to one number, a mean or a sum over examples.
        targets: The labels of the batch, in whatever form the loss takes them.
        separable: Whether examples enter the gradient as a sum. Found out by itself if `None`:
            layers that mix examples (BatchNorm in training mode) and losses that do are noticed.
        seed: For layers that draw random numbers in training mode (dropout).

    >>> model = nn.Linear(3, 2)
    >>> message = GradientMessage(model, nn.functional.cross_entropy, torch.tensor([0, 1]))
    >>> {name: tuple(g.shape) for name, g in message(torch.ones(2, 3)).items()}
    {'weight': (2, 3), 'bias': (2,)}
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        targets: Any,
        *,
        separable: bool | None = None,
        seed: int = 0,
    ) -> None:
        self.loss = FunctionalLoss(model, loss_fn, seed)
        self.targets = targets
        self._declared = separable
        self._coupled = couples_examples(model)

    @property
    def parameters(self) -> Tensors:
        """The trainable parameters, by name, as they are now."""
        return self.loss.parameters

    @property
    def separable(self) -> bool:
        """Whether examples are known to enter as a sum: g(x) = Σ_b g_b(x_b)."""
        if self._declared is not None:
            return self._declared
        return not self._coupled and known_to_separate(self.loss.loss_fn)

    def separates(self, inputs: Tensor) -> bool:
        """Like `separable`; a loss that does not say what it is gets tested on these inputs."""
        if self._declared is not None or self._coupled or self.separable:
            return self.separable
        with torch.no_grad():
            outputs = self.loss.outputs(self.parameters, inputs)
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
            return False
        return separates_at(lambda o: self.loss.loss_of_outputs(o, self.targets), outputs)

    def __call__(self, inputs: Tensor) -> Tensors:
        """The gradient, by parameter name; differentiable with respect to the inputs."""
        self._check_match(inputs)
        gradients: Tensors = grad(self.loss)(self.parameters, inputs, self.targets)
        return gradients

    def output_gradient(self, inputs: Tensor) -> Tensor:
        """δ = ∇_outputs L, one row for each example."""
        outputs = self.loss.outputs(self.parameters, inputs)
        delta: Tensor = grad(self.loss.loss_of_outputs)(outputs, self.targets)
        return delta

    def example_gradient(self, example: Tensor, output_gradient: Tensor) -> Tensors:
        """g_b = (∂ outputs_b / ∂Θ)ᵀ δ_b, what one example adds to the message."""
        pull_back = vjp(
            lambda parameters: self.loss.outputs(parameters, example.unsqueeze(0)), self.parameters
        )[1]
        gradients: Tensors = pull_back(output_gradient.unsqueeze(0))[0]
        return gradients

    def _check_match(self, inputs: Tensor) -> None:
        if not inputs.is_floating_point() or inputs.numel() == 0:
            check_inputs(inputs)
        if isinstance(self.targets, Tensor) and self.targets.shape[:1] != inputs.shape[:1]:
            raise ValueError(
                "Parameter `inputs` should have one example for each of the `targets`. Found"
                f" `inputs.shape = {tuple(inputs.shape)}` and"
                f" `targets.shape = {tuple(self.targets.shape)}`."
            )

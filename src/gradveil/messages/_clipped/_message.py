"""What differentially private training sends: with each example clipped, or as a whole."""

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._checks import (
    NonFiniteError,
    WrongType,
    WrongValue,
    all_finite,
    check_at_most,
    check_count,
    check_finite,
    check_kind,
    check_positive,
    check_seed,
    check_values,
)
from gradveil._tensors import Tensors

from .._functional import check_match, each_row, is_transformed
from .._gradient import GradientMessage
from .._mixing import (
    check_layers,
    check_outputs,
    ignored_label,
    loss_reduction,
    own_output_gradients,
    penalty_of,
    refusal,
)
from .._protocol import MappedMessage, Message, Wrapper, explained, secluded, values_of
from ._isolated import Part, check_targets, isolated, known_of, shapes_of
from ._metric import Factors, Metric, zeros
from ._norms import clipped_gradients, layer_squares, weighted_sum
from ._process import in_a_fork


class ClippedMessage(Wrapper):
    """ĝ(x) = (1/B) Σ_b g_b min(1, C / ‖Σ^{-1/2} g_b‖), g_b the gradient of the loss of example b.

    Formal guarantees: adding or removing an example moves B ĝ by at most C in the norm of Σ,
    replacing one by at most 2C, for every model: each g_b is computed from example b alone
    (`isolated` says how, and what is left).
    Rounding is on the safe side: C is taken smaller by 64 units in the last place, and where the
    terms of a gradient cancel, what is added up is what was clipped. What is left is the rounding
    of the sum itself, for continuous noise. For noise on a `grid`, B ĝ moves by C at most *after*
    it was rounded to the grid: `values` adds examples up in float64 (n of them are off by n 2⁻⁵³ of
    their sizes), and C is smaller by √d steps, what rounding the sums with and without an example
    may add, and by 2⁻¹² of itself for the last bits of the other examples' gradients, which depend
    on the number of examples in some kernels. That share is an allowance: it holds where these bits
    are worth less than 2⁻¹² C altogether.

    | batch | sent before noise |
    | --- | --- |
    | no examples (Poisson sampling) | 0 |
    | an example with gradient 0 | it adds 0 |
    | entries with r = 0 | 0, and no part of a norm |
    | an example with a NaN or infinite gradient | an error, nothing is sent |
    | fewer or more examples than B | the sum over those that are there, divided by B |
    | a loss with a term of the parameters alone (λ‖Θ‖²) | its gradient is added, unclipped |
    | a mean over targets, some of them ignored | the mean over those of each example; 0 if none |

    `values` is the fast form, for sending: no gradient of each example by itself where the layers
    are linear, convolutions, embeddings or the scale and shift of a norm. What the model draws at
    random (dropout) is fresh and known to nobody, unless there is a `seed`. Calling it gives the
    same numbers as a function that can be differentiated with respect to the inputs, for bounds and
    attacks; then the model may draw no random numbers.

    Args:
        message: A gradient whose examples meet only in the loss.
        clip: The threshold C.
        factors: Of the relative variances r, as in `Shape.factors`; Σ = diag(r) / mean(r).
            `None`: Σ = I.
        batch_size: The expected number B of examples, public and fixed. If `None`, the number of
            examples at hand, which is then known to whoever gets the message.
        grid: z of noise z C that will be drawn on a grid; `None` for continuous noise.
        seed: For simulations: who knows what the model drew can undo the clip, as one example more
            changes it for all that follow.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> message = GradientMessage(model, lambda o, _: o.sum(), None)
    >>> clipped = ClippedMessage(message, clip=5.0)
    >>> clipped.values(torch.tensor([[3.0, 4.0], [30.0, 40.0]]))["weight"].round(decimals=3)
    tensor([[3., 4.]])
    """

    message: GradientMessage
    passed_on = (*Wrapper.passed_on, "takes_tokens")

    def __init__(
        self,
        message: GradientMessage,
        clip: float,
        factors: Mapping[str, Factors] | None = None,
        batch_size: int | None = None,
        grid: float | None = None,
        seed: int | None = None,
    ) -> None:
        check_kind(
            message,
            "message",
            GradientMessage,
            "Examples can be clipped where the message is a gradient. For the update of local steps"
            " use unit='client', which clips it as a whole.",
        )
        _check_clip(clip, grid)
        if batch_size is not None:
            check_count(batch_size, "batch_size")
        if seed is not None:
            check_seed(seed)
        self.message = message.of(_plain(message.targets))
        self.clip, self.factors = clip, factors
        self.batch_size, self.grid, self.seed = batch_size, grid, seed
        self.kept: dict[Any, Any] | None = None
        """What micro-batches of one step share: the model's code runs for the first, so that code
        which counts its calls tells nothing of the others; the penalty is added once."""

    @torch.inference_mode(False)
    def values(self, inputs: Tensor) -> Tensors:
        """The same numbers for a client that only sends them; an empty batch gives 0.

        For noise on a grid they are in float64.
        """
        inputs, wide = _plain(inputs), torch.float64 if self.grid is not None else None
        sums, metric = zeros(self.parameters, wide), self._metric()
        if len(inputs):
            self._check(inputs)
        kept: dict[Any, Any] = {} if self.kept is None else self.kept
        key = shapes_of(self.message, inputs)
        if ("loss", key) not in kept:
            kept["loss", key] = self._penalty(inputs), self._ignored(inputs)
        penalty, label = kept["loss", key]
        message = self.message if penalty is not None else _without_weights(self.message)
        message, counted = _counted(message, inputs.detach(), label)
        with explained(self, inputs, lambda look: in_a_fork(look, {})):
            for part in isolated(message, counted, self.seed, kept=kept):  # of none, too
                _add(sums, part, metric, self.clip)
        if penalty and kept.get(key, (True,))[0] is None:
            raise WrongValue(
                "loss_fn",
                "have no term of the parameters alone where model or loss look at values: these"
                " could go into it, past the clip",
                "one",
                "Use weight_decay of the optimizer.",
            )
        values = self._with({} if "sent" in kept else penalty, metric.kept(sums), inputs)
        check_finite(values, "message(inputs)")
        kept["sent"] = True
        return values

    def __call__(self, inputs: Tensor) -> Tensors:
        """The clipped gradient; differentiable with respect to the inputs."""
        self._check(inputs)
        gradients = each_row(self._clipped, inputs, self.output_gradient(inputs))
        penalty = None if is_transformed(inputs) else self._penalty(inputs)
        return self._with(penalty, {n: g.sum(0) for n, g in gradients.items()}, inputs)

    def separates(self, inputs: Tensor) -> bool:
        """Yes, where the divisor B is known: what mixes examples is an error when evaluated."""
        return self.batch_size is not None or self.targets is not None

    def output_gradient(self, inputs: Tensor) -> Tensor:
        """∇_outputs L_b of each example's own loss."""
        outputs = self.loss.outputs(self.parameters, inputs)
        check_outputs(outputs, len(inputs))
        return own_output_gradients(self.loss, outputs, self.targets)

    def example_gradient(self, example: Tensor, output_gradient: Tensor) -> Tensors:
        """What one example adds to the message."""
        clipped = self._clipped(example, output_gradient)
        return {name: g / self._divisor(self.targets) for name, g in clipped.items()}

    def _clipped(self, example: Tensor, output_gradient: Tensor) -> Tensors:
        gradient = self.message.example_gradient(example, output_gradient)
        return self._metric().clipped(gradient, self.clip)

    def _metric(self) -> Metric:
        return Metric(self.factors, self.parameters, self.grid)

    def _check(self, inputs: Tensor) -> None:
        check_match(inputs, self.targets, tokens=self.takes_tokens)
        check_targets(self.targets, len(inputs))
        check_layers(self.loss.model)
        hooked = [n for n, p in self.loss.model.named_parameters() if p._backward_hooks]
        if hooked:
            raise refusal(
                f"a hook on the gradient of `{hooked[0]}`, which is not that of an example",
                "Change what was sent instead.",
            )
        if self.message.declared_separable is False:
            raise refusal("one that was declared not to be", "Leave `separable` out.")
        if is_transformed(inputs):  # inside of vmap nothing can be tested
            return
        if self.message.declared_separable is None and known_of(self.message, inputs).mixes:
            raise refusal(
                "that the model's outputs for one example change with another example",
                "Look for a layer that mixes them.",
            )

    def _penalty(self, inputs: Tensor) -> Tensors | None:
        """The gradient of what the loss adds for the parameters alone; `None` where unknown."""
        outputs = known_of(self.message, inputs).outputs
        if loss_reduction(self.loss.loss_fn) is not None:  # of torch itself: it knows no model
            return penalty_of(self.message, outputs, self._divisor(inputs))
        if outputs is None and not len(inputs):
            raise WrongValue(
                "inputs",
                "have the shape of an example where there are none, too, so that what the loss adds"
                " for the parameters alone is found",
                f"`inputs.shape = {tuple(inputs.shape)}`, which the model does not take",
                "Use for example torch.empty(0, 28, 28).",
            )
        with secluded(self.message) as alone:
            return penalty_of(alone, outputs, self._divisor(inputs))

    def _ignored(self, inputs: Tensor) -> int | None:
        outputs = known_of(self.message, inputs).outputs
        if self.message.reduction is not None:  # of torch itself: it knows no model
            return ignored_label(self.message, outputs)
        with secluded(self.message) as alone:
            return ignored_label(alone, outputs)

    def _with(self, penalty: Tensors | None, sums: Tensors, inputs: Tensor) -> Tensors:
        """The sums over examples divided by their number, and the penalty."""
        values = {n: g / self._divisor(inputs) for n, g in sums.items()}
        if not penalty:
            return values
        return {n: v + penalty[n].to(v) if n in penalty else v for n, v in values.items()}

    def _divisor(self, batch: Any) -> int:
        return max(1, len(batch)) if self.batch_size is None else self.batch_size


class ClippedUpdate(MappedMessage):
    """ĝ(x) = g(x) min(1, C / ‖Σ^{-1/2} g(x)‖): all that a client sends, clipped as one.

    Formal guarantees: adding or removing the client moves the sum over clients by at most C in the
    norm of Σ, replacing it by another one by at most 2C, whatever the message is. Rounding as in
    `ClippedMessage`. A message with a model is computed on a copy of it: its code leaves nothing of
    the client's data in the user's.

    Args:
        message: Anything that maps inputs to values, such as the update of local steps.
        clip: The threshold C.
        factors: Of the relative variances r, as in `Shape.factors`; `None`: Σ = I.
        grid: z of noise z C that will be drawn on a grid: C is then smaller by √d/2 of its steps,
            so that the rounded update is within C. `None` for continuous noise.

    >>> clipped = ClippedUpdate(lambda x: {"w": x.sum(0)}, clip=5.0)
    >>> clipped(torch.tensor([[30.0, 40.0]]))["w"].round(decimals=3)
    tensor([3., 4.])
    """

    passed_on = (*MappedMessage.passed_on, "takes_tokens")

    def __init__(
        self,
        message: Message,
        clip: float,
        factors: Mapping[str, Factors] | None = None,
        grid: float | None = None,
    ) -> None:
        super().__init__(message, after=self._clipped)
        _check_clip(clip, grid)
        self.clip, self.factors, self.grid = clip, factors, grid

    def values(self, inputs: Tensor) -> Tensors:
        """The same numbers for a client that only sends them."""
        with torch.no_grad(), secluded(self.message) as alone:
            values = values_of(alone, inputs)
            check_values(values, "message(inputs)")
            check_finite(values, "message(inputs)")
            clipped = self._clipped(values)
            check_finite(clipped, "message(inputs)")
            return clipped

    def _clipped(self, values: Tensors) -> Tensors:
        return Metric(self.factors, values, self.grid, rounded="each").clipped(values, self.clip)


def _check_clip(clip: float, grid: float | None) -> None:
    check_positive(clip, "clip")
    check_at_most(clip, "clip")
    if grid is not None:
        check_positive(grid, "grid")


def _plain(rows: Any) -> Any:
    """The numbers of a tensor without its class, whose code would meet all examples."""
    if not isinstance(rows, Tensor) or type(rows) in (Tensor, nn.Parameter):
        return rows.detach() if isinstance(rows, Tensor) else rows
    if type(rows).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        expected = "be plain tensors for a private message"
        raise WrongType("inputs and targets", expected, type(rows).__name__)
    with torch._C.DisableTorchFunctionSubclass():
        return rows.as_subclass(Tensor).detach()


def _without_weights(message: GradientMessage) -> GradientMessage:
    """The message, where using weights in the loss is an error: its penalty is unknown."""
    judged = copy(message)
    judged.loss = copy(message.loss)
    judged.loss.may_use_weights = False
    return judged


def _counted(
    message: GradientMessage, inputs: Tensor, label: int | None
) -> tuple[GradientMessage, Tensor]:
    """The examples that have targets: the others add 0, where a mean over theirs is 0/0."""
    if label is None or not len(inputs):
        return message, inputs
    counted = message.targets != label
    counted = counted if counted.dim() == 1 else counted.flatten(1).any(1)
    return message.of(message.targets[counted]), inputs[counted]


def _add(sums: Tensors, part: Part, metric: Metric, clip: float) -> None:
    """Put the clipped gradients of some examples to the sums.

    Norms and the clipped sum both come from the same numbers, so no weight gradient is computed
    twice, and none of an example where a layer's is a product. In float64, n examples are off by no
    more than n 2⁻⁵³ of the sum of their sizes, in any order.
    """
    if not all_finite(part.losses):
        raise NonFiniteError(
            "The loss of each example",
            "be finite",
            f"{int((~part.losses.isfinite()).sum())} of {len(part.losses)} NaN or infinite",
            "Nothing was sent; check the model's outputs and buffers, and the targets.",
        )
    layers = [layer_squares(use, metric) for use in part.uses]
    squares = torch.zeros_like(part.losses, dtype=torch.float64)
    for square in (*(own for own, _ in layers), *(metric.squares(*g) for g in part.others.items())):
        squares = squares + square
    if not all_finite(squares):
        raise NonFiniteError(
            "The gradient of each example",
            "be finite, and so should its square",
            f"{int((~squares.isfinite()).sum())} of {len(squares)} examples where it is not",
            "Nothing was sent; leave them out, or lower the learning rate.",
        )
    factors = metric.factor(squares, clip)
    for use, (_, weight_sum) in zip(part.uses, layers, strict=True):
        for name, g in clipped_gradients(use, factors.to(sums[use.weight].dtype), weight_sum):
            sums[name] += g
    for name, gradients in part.others.items():
        sums[name] += weighted_sum(factors.to(sums[name].dtype), gradients)

"""What batches of public examples say of a message, one by one and together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._checks import check_count
from gradveil._tensors import total
from gradveil._typing import Tensors
from gradveil.messages import GradientMessage, Message, TokenGradient, over_rows, separates
from gradveil.sensitivity import Estimator, Moments, check_moments, measure_with_values


@dataclass(frozen=True)
class Evidence:
    """Moments of one batch, with what its single examples add to them where that is known.

    One batch gradient g = Σ_b c_b is a poor estimate of E g²: it is one draw. Over batches of n
    examples E g² = n E c_b² + n (n - 1) (E c_b)², and all of the examples tell of E c_b².

    >>> from gradveil import Moments
    >>> moments = Moments({"w": torch.ones(2)}, {"w": torch.ones(2)}, input_size=3)
    >>> Evidence(moments, examples=4).examples
    4
    """

    moments: Moments
    """g² and s² of the batch."""
    values: Tensors | None = None
    """g; `None` where examples do not add up."""
    example_squares: Tensors | None = None
    """Σ_b c_b², beside the values."""
    examples: int = 1
    """In the batch."""
    is_sum: bool = False
    """Whether the message is a sum over examples, and not a mean."""

    def __post_init__(self) -> None:
        check_moments(self.moments)
        check_count(self.examples, "examples")

    @property
    def entries(self) -> int:
        """What is differentiated of one example: its inputs, or the embeddings of its tokens."""
        return self.moments.input_size // self.examples

    def squares(self, curvature: bool) -> Mapping[str, Tensor]:
        """What noise is weighted with where it costs: g², or h for the utility "curvature"."""
        known = self.moments
        return known.known_squared_example_values if curvature else known.squared_values


def gather(
    message: Message,
    inputs: Tensor,
    generator: torch.Generator,
    estimator: Estimator | str = "auto",
    *,
    judged: bool = False,
    examples: bool = True,
) -> Evidence:
    """Measure a message at a public batch, and its examples one by one where they add up.

    What it says of the rows of a table of tokens is spread over all rows: tokens that do not occur
    here may occur elsewhere.

    Args:
        message: The message of these examples.
        inputs: The examples.
        generator: For the probes.
        estimator: How sensitivities are measured.
        judged: Measure them twice, as `measure` does.
        examples: Whether to take examples one by one, at the price of some more gradients.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientMessage
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 4, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([0, 1]))
    >>> generator = torch.Generator().manual_seed(0)
    >>> gather(message, torch.rand(2, 3, generator=generator), generator).examples
    2
    """
    alone = examples and isinstance(message, GradientMessage) and separates(message, inputs)
    values, moments = measure_with_values(
        message, inputs, estimator, generator=generator, judged=judged, examples=alone
    )
    moments = replace(moments, squared_values=over_rows(moments.squared_values, message, inputs))
    if not alone or moments.squared_example_values is None:
        return Evidence(moments, examples=len(inputs))
    examples_alone = over_rows(moments.squared_example_values, message, inputs)
    moments = replace(moments, squared_example_values=examples_alone)
    if isinstance(message, TokenGradient):  # over batches, the gradients of a row have no mean
        rows = message.tables(inputs)
        values = {n: torch.zeros_like(v) if n in rows else v for n, v in values.items()}
    is_sum = getattr(message, "reduction", None) == "sum"
    share = 1.0 if is_sum else 1 / len(inputs)
    squares = {name: share * h for name, h in examples_alone.items()}
    return Evidence(moments, values, squares, len(inputs), is_sum)


class Pooled(NamedTuple):
    """S and G: what stands for E‖∇g_i‖² and E g_i² (or the curvature h_i)."""

    slopes: Tensors
    squares: Tensors


def pool(
    batches: Sequence[Evidence], size: int, *, equally: bool = True, curvature: bool = False
) -> Pooled:
    """S and G for messages of `size` examples, from public batches.

    G = n E c_b² + n (n - 1) (E c_b)² over all examples b where they add up, the second square
    without its bias; else the mean of g² over batches. With `curvature` it is the mean of h.

    Args:
        batches: What public batches say.
        size: n.
        equally: Divide each batch by its own mean of s² and of g² first. After training a few
            examples have most of all gradients, and should not decide alone on a shape; the amount
            of noise is for the plain means.
        curvature: Take h in the place of g².
    """
    slopes = mean_of([_scaled(b.moments.known_squared_sensitivities, equally) for b in batches])
    if curvature or any(b.example_squares is None for b in batches):
        return Pooled(slopes, mean_of([_scaled(b.squares(curvature), equally) for b in batches]))
    return Pooled(slopes, _from_examples(batches, size, equally))


def _from_examples(batches: Sequence[Evidence], size: int, equally: bool) -> Tensors:
    """With g of a batch of B, Q = E Σ_b c_b² and M = (E g)²: G = Q B/n + (1 - 1/n) M.

    That is E g² for batches of n in place of B, of a loss that is a mean. With K batches the mean
    ḡ has E ḡ² = M + (Q - M/B)/K, from which M follows.
    """
    count, examples = len(batches), batches[0].examples
    spreads = [b.example_squares or {} for b in batches]
    weights = [_scale(spread) if equally else 1.0 for spread in spreads]
    spread = mean_of([_times(s, w) for s, w in zip(spreads, weights, strict=True)])
    mean = mean_of([_times(b.values or {}, w**0.5) for b, w in zip(batches, weights, strict=True)])
    known = 1 - 1 / (examples * count)
    squares = {}
    for name, own in spread.items():
        found = (mean[name].square() - own / count).clamp(min=0) / known if known else 0.0
        squares[name] = own * (examples / size) + (1 - 1 / size) * found
    return squares


def _scaled(squares: Mapping[str, Tensor], equally: bool) -> Tensors:
    return _times(squares, _scale(squares) if equally else 1.0)


def _scale(squares: Mapping[str, Tensor]) -> float:
    """1 over the mean; 0 where all is 0."""
    size = sum(square.numel() for square in squares.values())
    whole = float(total(squares.values()))
    return size / whole if whole > 0 else 0.0


def _times(tensors: Mapping[str, Tensor], factor: float) -> Tensors:
    return {name: tensor.detach() * factor for name, tensor in tensors.items()}


def mean_of(many: Sequence[Tensors]) -> Tensors:
    """The mean over batches, tensor by tensor."""
    return {name: torch.stack([one[name] for one in many]).mean(0) for name in many[0]}


def entries_of(tensors: Mapping[str, Tensor], chosen: Mapping[str, Tensor]) -> Tensor:
    """The chosen entries of each tensor in one row, in float64."""
    return torch.cat([tensors[n].reshape(-1)[index].double() for n, index in chosen.items()])

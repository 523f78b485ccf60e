"""What one batch of public examples says of a message."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil._checks import check_count
from gradveil._typing import Tensors
from gradveil.messages import GradientMessage, Message, separates
from gradveil.sensitivity import Estimator, Moments, check_moments, measure_with_values


@dataclass(frozen=True)
class Evidence:
    """Moments of one batch, with what its single examples add to them where that is known.

    One batch gradient g = Σ_b c_b is a poor estimate of E g²: it is one draw. Over batches of n
    examples E g² = n E c_b² + n (n - 1) (E c_b)², and all of the examples tell of E c_b².
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
) -> Evidence:
    """Measure a message at a public batch, and its examples one by one where they add up.

    Args:
        message: The message of these examples.
        inputs: The examples.
        generator: For the probes.
        estimator: How sensitivities are measured.
        judged: Measure them twice, as `measure` does.
    """
    alone = isinstance(message, GradientMessage) and separates(message, inputs)
    values, moments = measure_with_values(
        message, inputs, estimator, generator=generator, judged=judged, examples=alone
    )
    moments = replace(moments, squared_values=dict(moments.squared_values))
    if not alone or moments.squared_example_values is None:
        return Evidence(moments, examples=len(inputs))
    is_sum = getattr(message, "reduction", None) == "sum"
    share = 1.0 if is_sum else 1 / len(inputs)
    squares = {name: share * h for name, h in moments.squared_example_values.items()}
    return Evidence(moments, values, squares, len(inputs), is_sum)

"""A defense that plans from public examples."""

import torch
from torch import Tensor

from gradveil._checks import check_count, check_inputs, check_tensor
from gradveil.messages import Message, check_match, gradient_of
from gradveil.plans import public_moments
from gradveil.sensitivity import Moments

from .._base import Defense
from ._kept import KeptPlan


class Public(KeptPlan):
    """Plans another defense from public examples at the current model (Theorems 2 to 4).

    What leaves the client is then a fixed channel: its noise levels, its pruned entries and its
    steps are those that the public examples ask for, whatever is in the private batch. The shape
    is shrunk towards isotropic noise as far as the public examples themselves demand it, and
    altogether where the model shows that they are of another kind (`gradveil.plans.fit_shape`,
    `gradveil.plans.trust_in`). `utility_budget` and `target_error` are met on the public examples.

    Args:
        defense: Any defense that plans: noise, noise with clamping, pruning, rounding.
        examples: Public inputs and targets, shaped like private ones. Eight batches reach nearly
            all of the gain that there is; two are enough not to lose.
        refresh_every: Calls from one plan to the next.
        batch_size: Of the public batches; that of the private one if `None`.

    >>> from gradveil import OptimalNoise
    >>> Public(OptimalNoise(scale=0.1), (torch.zeros(8, 3), torch.zeros(8).long()))
    Public(OptimalNoise(scale=0.1, ...), 8 examples, refresh_every=10)
    """

    plan_from = "public"

    def __init__(
        self,
        defense: Defense,
        examples: tuple[Tensor, Tensor],
        refresh_every: int = 10,
        batch_size: int | None = None,
    ) -> None:
        _check_examples(examples)
        if batch_size is not None:
            check_count(batch_size, "batch_size")
        super().__init__(defense, refresh_every)
        self.examples, self.batch_size = examples, batch_size

    @property
    def label(self) -> str:
        """The wrapped defense's, after "public"."""
        return f"public {self.defense.label}"

    def made_moments(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Moments:
        """Those of the public examples."""
        return public_moments(
            message,
            inputs,
            self.examples,
            generator,
            batch_size=self.batch_size,
            estimator=self.defense.estimator,
            judged=self.has_target_error,
            curvature=self.needs_curvature,
        )

    def __repr__(self) -> str:
        count = len(self.examples[0])
        return f"Public({self.defense!r}, {count} examples, refresh_every={self.refresh_every})"


def _check_examples(examples: object) -> None:
    if not isinstance(examples, (tuple, list)) or len(examples) != 2:
        raise TypeError(
            "Parameter `examples` should be a pair of public inputs and targets. Found"
            f" {type(examples).__name__}. Give for example `dataset.batch(2000, 128)`."
        )
    inputs, targets = examples
    tokens = gradient_of(inputs).takes_tokens
    check_inputs(inputs, "examples[0]", tokens=tokens)
    check_tensor(targets, "examples[1]")
    check_match(inputs, targets, tokens=tokens)

"""Deep Leakage from Gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._observation import Observation, check_observation
from ._reconstruction import Reconstruction
from ._search import LBFGSMatching, blank_inputs, clamp, message_distance


@dataclass(frozen=True)
class DLG(LBFGSMatching):
    """Match the message in inputs and soft labels together, by L-BFGS.

    Minimises ‖g(x, softmax(z)) - sent‖² / ‖sent‖² over x and z. It uses
    no label knowledge, not even what the threat model grants, and needs a loss that takes class
    probabilities, as `torch.nn.functional.cross_entropy` does. Made for smooth models and few
    images: with ReLU or large batches it rarely converges.

    Reference: Zhu, Liu and Han, "Deep Leakage from Gradients", NeurIPS 2019.

    Parameters: see `LBFGSMatching`.
    """

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; the targets returned are the likeliest classes."""
        check_observation(observation)
        blank = blank_inputs(observation)
        logits = blank.new_zeros(observation.batch_size, observation.num_classes)
        _check_soft_labels(observation, logits)

        def cost(inputs: Tensor, logits: Tensor) -> Tensor:
            return message_distance(observation, inputs, logits.softmax(dim=-1))

        best = self._search(cost, (blank, logits), generator)
        inputs = clamp(best.variables[0], observation.low, observation.high)
        targets = best.variables[1].argmax(dim=-1)
        return Reconstruction(inputs, targets, best.cost, best.history, best.status)


def _check_soft_labels(observation: Observation, logits: Tensor) -> None:
    try:
        observation.loss_fn(logits, logits.softmax(dim=-1))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            "Parameter `observation.loss_fn` should take class probabilities of shape"
            f" {tuple(logits.shape)} as targets, because DLG optimises them. Found that it fails"
            f" with `{type(error).__name__}: {error}`. Use cross-entropy, or `IDLG`."
        ) from error

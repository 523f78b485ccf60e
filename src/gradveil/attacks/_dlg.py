"""Deep Leakage from Gradients."""

from dataclasses import dataclass

import torch

from gradveil._random import generator_or_fresh

from ._attack import Reconstruction
from ._lbfgs import LBFGSMatching
from ._observation import Observation, check_observation
from ._targets import SoftTargets, soft_targets


@dataclass(frozen=True)
class DLG(LBFGSMatching):
    """Match the message in inputs and soft labels together, by L-BFGS.

    Minimises ‖g(x, softmax(z)) - sent‖² / ‖sent‖² over x and z. It uses
    no label knowledge, not even what the threat model grants, and needs a loss that takes class
    probabilities, as `torch.nn.functional.cross_entropy` does. Targets that are numbers are
    optimised themselves. Made for smooth models and few images: with ReLU or large batches it
    rarely converges.

    Reference: Zhu, Liu and Han, "Deep Leakage from Gradients", NeurIPS 2019.

    Parameters: see `LBFGSMatching`.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
    >>> from gradveil.attacks import observe
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 8, 2])
    >>> private = torch.tensor([[0.2, 0.7, 0.4]]), torch.tensor([1])
    >>> seen = observe(model, cross_entropy, private, NoDefense(), num_classes=2)
    >>> found = DLG(steps=50)(seen, torch.Generator().manual_seed(0))
    >>> found.targets
    tensor([1])
    """

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; the targets returned are numbers, or the likeliest classes."""
        check_observation(observation)
        generator = generator_or_fresh(generator)
        return self._matched(observation, _soft(observation, generator), generator)


def _soft(observation: Observation, generator: torch.Generator) -> SoftTargets:
    if observation.task != "classification":
        return soft_targets(observation, generator)
    like = next(iter(observation.sent.values()))
    logits = like.new_zeros(observation.batch_size, observation.num_classes)
    try:
        observation.loss_fn(logits, logits.softmax(dim=-1))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            "Parameter `observation.loss_fn` should take class probabilities of shape"
            f" {tuple(logits.shape)} as targets, because DLG optimises them. Found that it fails"
            f" with `{type(error).__name__}: {error}`. Use cross-entropy, or `IDLG`."
        ) from error
    return SoftTargets(logits, -1)

"""Improved Deep Leakage from Gradients."""

from dataclasses import dataclass

import torch

from gradveil._random import generator_or_fresh

from ._attack import Reconstruction
from ._labels import recover_labels
from ._lbfgs import LBFGSMatching
from ._observation import Observation, check_observation


@dataclass(frozen=True)
class IDLG(LBFGSMatching):
    """Labels from the last layer first (`recover_labels`), then matching in the inputs alone.

    Minimises ‖g(x, ŷ) - sent‖² / ‖sent‖² over x by L-BFGS. For one example the label is exact;
    iDLG is stated for one, and batches here use the counts that `recover_labels` finds.

    Reference: Zhao, Mopuri and Bilen, "iDLG: Improved Deep Leakage from Gradients", 2020.

    Parameters: see `LBFGSMatching`.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
    >>> from gradveil.attacks import observe
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 8, 2])
    >>> private = torch.tensor([[0.2, 0.7, 0.4]]), torch.tensor([1])
    >>> seen = observe(model, cross_entropy, private, NoDefense(), num_classes=2)
    >>> found = IDLG(steps=50)(seen, torch.Generator().manual_seed(0))
    >>> found.inputs.round(decimals=2)
    tensor([[0.2000, 0.7000, 0.4000]])
    """

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; all randomness comes from the generator."""
        check_observation(observation)
        generator = generator_or_fresh(generator)
        return self._matched(observation, recover_labels(observation, generator), generator)

"""Improved Deep Leakage from Gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._dlg import DLG
from ._labels import recover_labels
from ._observation import Observation


@dataclass(frozen=True)
class IDLG(DLG):
    """Labels from the last layer first (`recover_labels`), then matching in the inputs alone.

    Minimises ‖g(x, ŷ) - sent‖² / ‖sent‖² over x by L-BFGS. For one example the label is exact;
    iDLG is stated for one, and batches here use the counts that `recover_labels` finds.

    Reference: Zhao, Mopuri and Bilen, "iDLG: Improved Deep Leakage from Gradients", 2020.

    Parameters: see `DLG`.

    >>> IDLG(steps=50)(seen, torch.Generator().manual_seed(0)).inputs.round(decimals=2)
    tensor([[0.2000, 0.7000, 0.4000]])
    """

    def _targets(self, observation: Observation, generator: torch.Generator) -> Tensor:
        return recover_labels(observation, generator)

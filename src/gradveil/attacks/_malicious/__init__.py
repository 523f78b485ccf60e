"""Servers that change the model so that its gradients give single examples away."""

from ._fishing import Fishing
from ._imprint import Imprint
from ._imprinted_net import ImprintedNet

__all__ = ["Fishing", "Imprint", "ImprintedNet"]

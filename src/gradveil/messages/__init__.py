"""What a client would send undefended, as a differentiable function of its private inputs.

A message is anything callable of the shape ``inputs -> {parameter name: tensor}``.
"""

from ._functional import (
    FunctionalLoss,
    LossFunction,
    check_match,
    trainable_parameters,
)
from ._gradient import GradientMessage
from ._local_update import LocalSteps, LocalUpdateMessage
from ._protocol import Message, separates, values_of
from ._size import size_in_bytes

__all__ = [
    "FunctionalLoss",
    "GradientMessage",
    "LocalSteps",
    "LocalUpdateMessage",
    "LossFunction",
    "Message",
    "check_match",
    "separates",
    "size_in_bytes",
    "trainable_parameters",
    "values_of",
]

"""What a client would send undefended, as a differentiable function of its private inputs.

A message is anything callable of the shape ``inputs -> {parameter name: tensor}``.
"""

from ._explain import ModelError, check_message, explained, outputs_of
from ._gradient import GradientMessage
from ._local_update import LocalSteps, LocalUpdateMessage
from ._protocol import Message, separates, values_of

__all__ = [
    "GradientMessage",
    "LocalSteps",
    "LocalUpdateMessage",
    "Message",
    "ModelError",
    "check_message",
    "explained",
    "outputs_of",
    "separates",
    "values_of",
]

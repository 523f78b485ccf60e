"""What a client would send undefended, as a differentiable function of its private inputs.

A message is anything callable of the shape ``inputs -> {parameter name: tensor}``.
"""

from ._clipped import ClippedMessage, ClippedUpdate, Metric, example_gradients, in_a_fork
from ._functional import (
    AdaptedModel,
    FunctionalLoss,
    LossFunction,
    check_match,
    check_model,
    described_outputs,
    each_row,
    same_bits,
    trainable_parameters,
)
from ._gradient import (
    GradientMessage,
    LocalSteps,
    LocalUpdateMessage,
    TokenGradient,
    embedded,
    find_lookups,
    gradient_of,
    over_rows,
    random_ids,
)
from ._layers import ConvUse, LayerUse, LinearUse, Recorder, ScaleUse, settled
from ._mixing import couples_examples
from ._protocol import (
    MappedMessage,
    Message,
    ModelError,
    MovableMessage,
    check_finite_message,
    check_loss,
    check_message,
    check_separates,
    explained,
    in_double,
    movable,
    outputs_of,
    secluded,
    separates,
    size_in_bytes,
    takes_tokens,
    values_of,
)

# What `__all__` does not list is for our own packages.
__all__ = [
    "AdaptedModel",
    "ClippedMessage",
    "ClippedUpdate",
    "GradientMessage",
    "LocalSteps",
    "LocalUpdateMessage",
    "LossFunction",
    "Message",
    "ModelError",
]

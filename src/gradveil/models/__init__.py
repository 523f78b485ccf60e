"""The paper's models, a few small ones for tests, and `build_model`, which names them.

Every model maps a batch of inputs to logits. `build_model` is deterministic in its seed, does
not touch the global random state, and returns the model in eval mode, as the paper uses it:

>>> from gradveil.models import build_model
>>> model = build_model("simple-conv-net", seed=0)
>>> sum(parameter.numel() for parameter in model.parameters())
119530
>>> model.training
False
"""

from ._networks import (
    MLP,
    ConvNet,
    PatchTransformer,
    ResNet,
    SimpleConvNet,
    TokenTransformer,
    VariationalBottleneck,
    next_token_loss,
    with_bottleneck,
)
from ._registry import (
    build_fitting_model,
    build_loss,
    build_model,
    count_outputs,
    default_model,
)

# What `__all__` does not list is for our own packages.
__all__ = ["build_loss", "build_model", "next_token_loss", "with_bottleneck"]

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

from gradveil.models._bottleneck import VariationalBottleneck, with_bottleneck
from gradveil.models._conv_net import ConvNet
from gradveil.models._fitting import (
    build_fitting_model,
    count_classes,
    count_outputs,
    default_model,
)
from gradveil.models._le_net import LeNet
from gradveil.models._losses import build_loss, loss_names
from gradveil.models._mlp import MLP
from gradveil.models._patch_transformer import PatchTransformer
from gradveil.models._registry import build_model, model_names, model_options
from gradveil.models._res_net import ResNet
from gradveil.models._simple_conv_net import SimpleConvNet
from gradveil.models._token_transformer import TokenTransformer, next_token_loss

__all__ = [
    "MLP",
    "ConvNet",
    "LeNet",
    "PatchTransformer",
    "ResNet",
    "SimpleConvNet",
    "TokenTransformer",
    "VariationalBottleneck",
    "build_fitting_model",
    "build_loss",
    "build_model",
    "count_classes",
    "count_outputs",
    "default_model",
    "loss_names",
    "model_names",
    "model_options",
    "next_token_loss",
    "with_bottleneck",
]

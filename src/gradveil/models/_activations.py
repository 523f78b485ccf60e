"""Activations by name."""

from collections.abc import Callable

from torch import nn

from gradveil._suggest import suggestion

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}


def build_activation(name: str) -> nn.Module:
    """A new module of the activation `name`.

    >>> build_activation("tanh")
    Tanh()
    """
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ValueError(
            f"Parameter `activation` should be one of {', '.join(_ACTIVATIONS)}. "
            f"Found `activation={name!r}`.{suggestion(str(name), _ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]()

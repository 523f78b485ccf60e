"""Types shared by the whole package."""

from collections.abc import Mapping

from torch import Tensor

Tensors = dict[str, Tensor]
"""Values by parameter name: a message, its moments, the noise levels of a mechanism."""

Level = float | Mapping[str, Tensor]
"""One number for every entry, or a tensor in the shape of each parameter."""

"""What enters the linear maps of a model of tokens, found by watching it run."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradveil._typing import Tensors
from gradveil.messages import TokenGradient

ROOM = 2**22
"""Numbers that the model makes at once."""


class LinearInput(NamedTuple):
    """One input of linear maps, such as the queries, keys and values of a layer."""

    weights: list[tuple[str, bool]]
    """The names of their weights, and whether these are (in, out) instead of (out, in)."""
    inputs: Tensor
    """Shape (sequences, length, features)."""


class _Watch(TorchFunctionMode):
    """Notes the inputs of `F.linear(x, W)` and of `addmm(b, x, W)`, as GPT-2 is written with."""

    def __init__(self, parameters: Tensors) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self.found: list[tuple[Tensor, str, bool]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call it, and note its input where its weight is a parameter."""
        place = {F.linear: 0, torch.addmm: 1}.get(func)
        if place is not None and len(args) > place + 1:
            name = self._names.get(id(args[place + 1]))
            if name is not None:
                self.found.append((args[place], name, func is torch.addmm))
        return func(*args, **(kwargs or {}))


def linear_inputs(message: TokenGradient, ids: Tensor) -> list[LinearInput]:
    """The inputs of linear maps in the order of use, those with one row for each token.

    Maps that read the same tensor are put together.
    """
    parameters = message.parameters
    with torch.no_grad(), _Watch(parameters) as watch:
        message.loss.outputs(parameters, ids)
    groups: list[tuple[Tensor, list[tuple[str, bool]]]] = []
    for inputs, name, transposed in watch.found:
        if groups and groups[-1][0] is inputs:
            groups[-1][1].append((name, transposed))
        else:
            groups.append((inputs, [(name, transposed)]))
    rows = ids.numel()
    return [
        LinearInput(weights, inputs.reshape(*ids.shape, -1))
        for inputs, weights in groups
        if inputs.numel() == rows * inputs.shape[-1]
    ]


def first_inputs(message: TokenGradient, length: int, tokens: int) -> Tensor:
    """What token v in place p makes of the first linear map's input: (tokens, length, features).

    Sequences of one token repeated give it for all places at once.
    """
    chunk = max(1, ROOM // (length * tokens))
    parts = [
        linear_inputs(message, part.unsqueeze(1).expand(-1, length).contiguous())[0].inputs
        for part in torch.arange(tokens).split(chunk)
    ]
    return torch.cat(parts)

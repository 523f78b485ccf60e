"""Which derivatives the backward pass at work asks for."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

Nodes: TypeAlias = tuple[Node | None, ...]


def nodes_of(*tensors: Tensor | None) -> Nodes:
    """Where the derivatives of these tensors go; `None` where they have none."""
    return tuple(
        get_gradient_edge(t).node if t is not None and t.requires_grad else None for t in tensors
    )


def wanted(nodes: Sequence[Node | None]) -> list[bool]:
    """Whether the pass at work needs each of them; torch's own layers are told so by its engine.

    A function in Python only hears whether a tensor requires derivatives at all: then the weights'
    would be computed again where only the inputs' are asked for.
    """
    return [node is not None and _is_executed(node) for node in nodes]


def _is_executed(node: Node) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))  # type: ignore[attr-defined]
    except RuntimeError:  # a leaf that is asked for
        return True

"""Which derivatives the backward pass at work asks for."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import Node

Nodes: TypeAlias = tuple[Node | bool, ...]


def nodes_of(*tensors: Tensor | None) -> Nodes:
    """What made these tensors; of a leaf, and where there is none, whether it has derivatives."""
    return tuple(
        False if t is None or not t.requires_grad else True if t.grad_fn is None else t.grad_fn
        for t in tensors
    )


def wanted(nodes: Sequence[Node | bool], *, is_last: bool) -> list[bool]:
    """Whether the pass at work needs the derivatives of inputs and weights; inputs come first.

    torch's own layers are told so by its engine. A function in Python only hears whether a tensor
    requires derivatives at all: then the weights' would be computed again in the last pass, where
    only the candidate's are asked for. Leaves behind the first place are weights.
    """
    return [
        node and not (is_last and place > 0) if isinstance(node, bool) else _is_executed(node)
        for place, node in enumerate(nodes)
    ]


def _is_executed(node: Node) -> bool:
    return bool(torch._C._will_engine_execute_node(node))  # type: ignore[attr-defined]

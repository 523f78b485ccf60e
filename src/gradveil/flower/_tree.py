"""Nested state as JSON text and tensors by name: what Flower's records can hold."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradveil._typing import Tensors

_PLAIN = (bool, int, float, str, type(None))


def write_tree(tree: Any) -> tuple[str, Tensors]:
    """The text and the tensors from which `read_tree` makes the same tree.

    Args:
        tree: Tensors, numbers, text and `None` in dicts, lists and tuples.
    """
    tensors: Tensors = {}
    return json.dumps(_written(tree, tensors)), tensors


def read_tree(text: str, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that `write_tree` was given."""
    return _read(json.loads(text), tensors)


def _written(tree: Any, tensors: Tensors) -> Any:
    """A list that starts with the kind of what it holds."""
    if isinstance(tree, Tensor):
        name = str(len(tensors))
        tensors[name] = tree.detach()
        return ["tensor", name, str(tree.dtype).removeprefix("torch.")]
    if isinstance(tree, dict):
        items = [[_written(key, {}), _written(value, tensors)] for key, value in tree.items()]
        return ["dict", items]
    if isinstance(tree, (list, tuple)):
        kind = "list" if isinstance(tree, list) else "tuple"
        return [kind, [_written(part, tensors) for part in tree]]
    if not isinstance(tree, _PLAIN):
        raise TypeError(
            "A defense's `state_dict` should hold tensors, numbers, text and `None`, in dicts,"
            f" lists and tuples. Found {type(tree).__name__}. Turn it into these."
        )
    return ["value", tree]


def _read(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    kind, content, *dtype = node
    if kind == "tensor":
        return tensors[content].to(getattr(torch, dtype[0]))
    if kind == "dict":
        return {_read(key, tensors): _read(value, tensors) for key, value in content}
    if kind == "value":
        return content
    parts = [_read(part, tensors) for part in content]
    return parts if kind == "list" else tuple(parts)

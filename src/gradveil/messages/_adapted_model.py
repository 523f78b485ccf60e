"""A model that takes one tensor and returns one, made of a model that does not."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from gradveil._checks import WrongValue, check_kind


class AdaptedModel(nn.Module):
    """A model of which one output is used, or which takes its inputs by name.

    For models that return a dict, a tuple or a `ModelOutput` of transformers, and for those that
    take embeddings as `inputs_embeds`. Weights are shared with the model, and named `model.*`.

    Args:
        model: The model; it is not modified.
        output: The key, the name or the number of the output; `None`: it returns one tensor.
        input: The name of the argument that takes the inputs; `None`: the first one.

    >>> import torch
    >>> class Two(nn.Linear):
    ...     def forward(self, inputs):
    ...         return {"logits": super().forward(inputs), "inputs": inputs}
    >>> AdaptedModel(Two(3, 2), output="logits")(torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """

    def __init__(
        self, model: nn.Module, output: str | int | None = None, input: str | None = None
    ) -> None:
        super().__init__()
        check_kind(model, "model", nn.Module)
        if output is not None:
            check_kind(output, "output", (str, int), "Use for example 'logits', or 0.")
        if input is not None:
            check_kind(input, "input", str, "Use for example 'inputs_embeds'.")
        self.model, self.output, self.input = model, output, input

    def forward(self, inputs: Tensor) -> Any:
        """The chosen output."""
        outputs = self.model(inputs) if self.input is None else self.model(**{self.input: inputs})
        return outputs if self.output is None else _chosen(outputs, self.output)


def described_outputs(outputs: Any) -> str:
    """What a model returned, with the keys under which its parts are found.

    >>> import torch
    >>> described_outputs({"logits": torch.zeros(2, 3), "states": ()})
    "dict with 'logits' (2, 3), 'states' (tuple)"
    """
    if isinstance(outputs, Tensor):
        return f"one tensor of shape {tuple(outputs.shape)}"
    parts = [f"{key!r} {_shape(part)}" for key, part in _parts(outputs).items()]
    return f"{type(outputs).__name__}{' with ' if parts else ''}{', '.join(parts)}"


def _chosen(outputs: Any, key: str | int) -> Any:
    parts = _parts(outputs)
    values = list(parts.values())
    if key in parts:
        return parts[key]
    if isinstance(key, str) and key in getattr(outputs, "_fields", ()):  # a NamedTuple
        return getattr(outputs, key)
    if isinstance(key, int) and not isinstance(key, bool) and -len(values) <= key < len(values):
        return values[key]
    found = f"{key!r}, and that it returns {described_outputs(outputs)}"
    raise WrongValue("output", "name an output of the model", found)


def _parts(outputs: Any) -> dict[Any, Any]:
    if isinstance(outputs, Mapping):
        return dict(outputs)
    return dict(enumerate(outputs)) if isinstance(outputs, (tuple, list)) else {}


def _shape(part: Any) -> str:
    return str(tuple(part.shape)) if isinstance(part, Tensor) else f"({type(part).__name__})"

"""Values and derivatives of a message that are needed more than once."""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor
from torch.func import vjp

from gradveil._typing import Tensors
from gradveil.messages import Message, values_of
from gradveil.sensitivity import directional_derivatives

Result = TypeVar("Result")

MOST = 3 * 2**22
"""Numbers that are kept for one message; what is beyond that is computed again."""

GRAPH = 8
"""What the graph of a message is counted as, in messages."""


class Evaluations:
    """One message at given points, each value and each derivative computed once.

    Bounds of several mechanisms on the same message need it at the same points, as long as they
    draw the same random directions: give this and a generator with one seed to `mean_bound`.
    Results are found by the contents of points and directions, so that other ones
    are never mixed up; they are only not faster.

    Args:
        message: What the client would send. It should not change afterwards.
        most: Numbers that are kept; 0 keeps nothing.
    """

    def __init__(self, message: Message, most: int = MOST) -> None:
        self.message = message
        self._left = most
        self._known: dict[bytes, Any] = {}

    def values(self, inputs: Tensor) -> Tensors:
        """g(x)."""
        return self._once("values", lambda: values_of(self.message, inputs), inputs)

    def derivatives(self, point: Tensor, directions: Tensor) -> Tensors:
        """∂_v g(x) for each row v of `directions`."""

        def compute() -> Tensors:
            return directional_derivatives(self.message, point, directions)

        return self._once("derivatives", compute, point, directions)

    def pull_back(self, point: Tensor) -> tuple[Tensors, Callable[[Tensors], tuple[Tensor]]]:
        """g(x), and the map u ↦ Jᵀu."""

        def compute() -> tuple[Tensors, Callable[[Tensors], tuple[Tensor]]]:
            values, pull_back = vjp(self.message, point)[:2]
            return values, pull_back

        return self._once("pull back", compute, point, size=GRAPH)

    def _once(
        self, what: str, compute: Callable[[], Result], *tensors: Tensor, size: int = 1
    ) -> Result:
        if self._left <= 0:
            return compute()
        key = _key(what, tensors)
        if key in self._known:
            found: Result = self._known[key]
            return found
        found = compute()
        numbers = size * _entries(found)
        if numbers <= self._left:
            self._known[key], self._left = found, self._left - numbers
        return found


def _entries(found: Any) -> int:
    """Numbers in values, or in the values beside a map."""
    values: Tensors = found[0] if isinstance(found, tuple) else found
    return sum(value.numel() for value in values.values())


def _key(what: str, tensors: tuple[Tensor, ...]) -> bytes:
    digest = hashlib.sha256(what.encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()

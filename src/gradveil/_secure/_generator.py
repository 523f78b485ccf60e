"""The generator whose noise cannot be undone."""

from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._bits import SecureBits
from ._entropy import fill_from_system
from ._normal import normals, uniforms


class SecureGenerator(torch.Generator):
    """A `torch.Generator` whose noise comes from AES-256 in counter mode, keyed by the system.

    Give it in place of a torch.Generator. What is sent depends on noise, masks and samples; these
    come from the cryptographic stream. What is never sent (probes, dropout) still comes from the
    Mersenne Twister that this is as well, its whole state filled by the system.

    The outputs of a Mersenne Twister determine its state: who sees 624 of them computes all others.
    Here that would take breaking AES-256. There is no seed, and no copy: both would make noise that
    can be computed again.

    Cost: 109 million normals per second of processor time (AMD EPYC, float32), 77 in float64; the
    Mersenne Twister makes 247. Sums in floating point reveal a little of what noise was added to,
    wherever the noise comes from; discrete noise does not (`GridMechanism`).

    >>> drawn = SecureGenerator().normal(torch.Size([1000]), torch.float32)
    >>> bool(drawn.mean().abs() < 0.3), bool((drawn.std() - 1).abs() < 0.3)
    (True, True)
    """

    def __new__(cls) -> "SecureGenerator":
        """One on the processor; numbers are moved to other devices afterwards."""
        return super().__new__(cls)

    def __init__(self) -> None:
        super().__init__()
        self._bits = SecureBits()
        fill_from_system(self)

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` uniform 64-bit words."""
        return self._bits.words(count)

    def uniform(self, shape: torch.Size) -> Tensor:
        """Numbers in [0, 1) with 53 bits, in float64."""
        return uniforms(self._bits.words, shape.numel()).view(shape)

    def normal(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Standard normal numbers."""
        return normals(self._bits.words, shape.numel(), dtype).view(shape)

    def manual_seed(self, seed: int) -> NoReturn:
        """Refused: there is no seed."""
        self._refuse("manual_seed")

    def seed(self) -> NoReturn:
        """Refused: there is no seed."""
        self._refuse("seed")

    def set_state(self, new_state: Tensor) -> NoReturn:
        """Refused: nothing can be drawn a second time."""
        self._refuse("set_state")

    def clone_state(self) -> NoReturn:
        """Refused: nothing can be drawn a second time."""
        self._refuse("clone_state")

    def __deepcopy__(self, memo: dict[int, Any]) -> "SecureGenerator":
        return SecureGenerator()

    def __reduce__(self) -> NoReturn:
        self._refuse("pickle")

    def _refuse(self, name: str) -> NoReturn:
        raise TypeError(
            f"A SecureGenerator should be made anew for each use. Found `{name}`: numbers that can"
            " be drawn again protect nobody. Use a torch.Generator for runs to repeat."
        )

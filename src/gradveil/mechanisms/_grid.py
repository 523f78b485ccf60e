"""The mechanism of discrete Gaussian noise on a grid."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._secure import GRID_BITS, release_on_grid
from gradveil._typing import Tensors

from ._levels import as_tensors, level_of
from ._mechanism import Mechanism


@dataclass(frozen=True)
class GridMechanism(Mechanism):
    """y_i = step_i (round(g_i / step_i) + n_i), step_i = std_i / 2^bits, n_i discrete Gaussian.

    P(n) ∝ exp(-n² / (2 · 4^bits)), so the noise has the standard deviation std_i. What can be sent
    are the multiples of the steps, whatever the values are; a continuous Gaussian in floating point
    has sums that only some values lead to (Mironov, "On Significance of the Least Significant Bits
    for Differential Privacy", 2012). To theory and attacks it is the Gaussian with this `std`: at
    2²⁰ steps both have the same likelihood up to 10⁻¹² (`gradveil.privacy.grid_distance`).

    What is sent has the dtype of `std`; values may be in float64, as sums are.

    Args:
        std: Above 0 where an entry is sent.
        keep: 1 where an entry is sent, 0 where nothing is; `None`: all is sent.
        clip: None: nothing is clamped.
        bits: The fineness of the grid.

    >>> std = {"w": torch.tensor([0.5, 2.0])}
    >>> sent = GridMechanism(std, bits=3).apply({"w": torch.zeros(2)})["w"]
    >>> steps = sent / torch.tensor([0.0625, 0.25])
    >>> bool((steps == steps.round()).all())
    True
    """

    bits: int = GRID_BITS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None:
            raise ValueError(
                "A mechanism on a grid should send entries as they are. Found"
                f" `clip = {self.clip}`. Use `Mechanism`."
            )

    def _normals(self, values: Tensors, generator: torch.Generator) -> Tensors:
        """None: noise is discrete."""
        return {}

    def _send(
        self, name: str, value: Tensor, generator: torch.Generator, drawn: Tensor | None
    ) -> Tensor:
        value, dtype = value.to(torch.float64), self._dtype(name, value)
        if self.keep is None:
            return release_on_grid(value, level_of(self.std, name), generator, self.bits).to(dtype)
        like = {name: value}
        is_sent = as_tensors(self.keep, like)[name] > 0
        std = torch.where(is_sent, as_tensors(self.std, like)[name], 1.0)
        return (release_on_grid(value, std, generator, self.bits) * is_sent).to(dtype)

    def steps(self, like: Tensors) -> Tensors:
        """The step of each entry, in float64."""
        levels = as_tensors(self.std, {name: v.to(torch.float64) for name, v in like.items()})
        return {name: level * 2.0**-self.bits for name, level in levels.items()}

    def _dtype(self, name: str, value: Tensor) -> torch.dtype:
        return self.std[name].dtype if isinstance(self.std, dict) else value.dtype

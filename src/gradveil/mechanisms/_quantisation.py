"""The mechanism that rounds at random to a few levels, such that the mean stays the same."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_count, check_finite, check_structure, check_values
from gradveil._random import bernoulli, generator_or_fresh
from gradveil._typing import Tensors

from ._doubt import Doubt
from ._likelihood import rounding_error
from ._reading import Reading, all_sent

TOLERANCE = 1e-3
"""How far from a whole number of steps an entry may be, in steps, because of rounding."""


@dataclass(frozen=True)
class QuantisationMechanism:
    """y_i = a ⌊|g_i|/a + u_i⌋ sign(g_i) with a = ‖g‖₂ / levels of each tensor, u_i uniform.

    So E[y_i] = g_i, and an entry between two levels goes to either with the probability that its
    place says. The norm can be read off what is sent: it is a noise-free function of the values, so
    that there is no bound.

    >>> sent = QuantisationMechanism(levels=5).apply({"w": torch.tensor([3.0, -4.0])})
    >>> sent["w"].round(decimals=3)
    tensor([ 3., -4.])
    """

    levels: int

    def __post_init__(self) -> None:
        check_count(self.levels, "levels")

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """Draw the levels. A NaN or an infinity in the values is an error, never sent."""
        check_values(values)
        check_finite(values)
        generator = generator_or_fresh(generator)
        return {name: self._send(value, generator) for name, value in values.items()}

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i] = g_i."""
        check_values(values)
        return dict(values)

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] = a² f_i (1 - f_i), f_i the part of |g_i|/a behind the point."""
        check_values(values)
        return {name: self._variance(value) for name, value in values.items()}

    def information(self, values: Tensors) -> Tensors:
        """Infinite: the norm of each tensor is sent bare."""
        check_values(values)
        return {name: torch.full_like(value, torch.inf) for name, value in values.items()}

    def log_likelihood(self, values: Tensors, sent: Tensors, doubt: Doubt | None = None) -> Tensor:
        """log P(sent | values) in float64: Σ_i log max(0, 1 - |y_i - g_i| / a).

        Entries that the values cannot lead to, be it by their level or because the norm is another,
        add so large a negative number that nothing outweighs it. The number of levels is public:
        there is nothing to be in doubt about.
        """
        check_values(values)
        check_structure(sent, values, "sent", "values")
        terms = [self._log_likelihood(value, sent[name]) for name, value in values.items()]
        return torch.stack(terms).sum()

    def doubt(self, other: "QuantisationMechanism", like: Tensors) -> Doubt:
        """None: nothing is planned."""
        return Doubt()

    def read(self, sent: Tensors, realised: bool = True) -> Reading:
        """Noise around the sent values, of one level for each tensor.

        The coarsest grid that holds all entries has the step a, and ‖g‖ = levels · a. As
        E‖y‖² = ‖g‖² + Σ_i Var[y_i], the mean variance is (‖y‖² - ‖g‖²) / n. In a small tensor all
        entries may lie on a coarser grid, and then its noise is taken for too small. That the noise
        has another shape, and that the norm is known exactly, is not used.
        """
        check_values(sent, "sent")
        std = {name: self._deviation(y) for name, y in sent.items()}
        return all_sent(sent, sent, std)

    def with_least_noise(self, share: float) -> "QuantisationMechanism":
        """The same: its noise is what it is."""
        return self

    def _step(self, value: Tensor) -> Tensor:
        return value.double().square().sum().sqrt() / self.levels

    def _places(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The step, and |g_i| in steps, before and behind the point; 0 for a tensor of zeros."""
        step = self._step(value)
        place = value.double().abs() / torch.where(step > 0, step, 1.0)
        return step, place.floor(), place.frac()

    def _send(self, value: Tensor, generator: torch.Generator) -> Tensor:
        step, whole, part = self._places(value)
        steps = whole + bernoulli(part, generator)
        return (step * steps * value.sign()).to(value.dtype)

    def _variance(self, value: Tensor) -> Tensor:
        step, _, part = self._places(value)
        return (step.square() * part * (1 - part)).to(value.dtype)

    def _log_likelihood(self, value: Tensor, sent: Tensor) -> Tensor:
        y, v, step = sent.double(), value.double(), self._step(value)
        error = rounding_error(sent, step)
        unit = torch.where(step > 0, step, 1.0)
        off_grid = (y - step * (y / unit).round()).abs()
        beyond = ((y - v).abs() - step).clamp(min=0)
        misfit = torch.maximum(off_grid, beyond)
        chance = (1 - (y - v).abs() / unit).clamp(min=torch.finfo(sent.dtype).eps)
        possible = misfit <= 4 * error
        return torch.where(possible, chance.log(), -0.5 * (misfit / error).square()).sum()

    def _deviation(self, sent: Tensor) -> Tensor:
        y = sent.double()
        power, norm = y.square().sum(), self.levels * _grid_step(y, self.levels)
        variance = (power - norm**2).clamp(min=0) / max(1, y.numel())
        return variance.sqrt().to(sent.dtype).expand(sent.shape)


def _grid_step(sent: Tensor, levels: int) -> Tensor:
    """The largest a of which all entries are multiples; 0 where all of them are 0."""
    sizes = sent.abs()[sent != 0]
    if not sizes.numel():
        return sent.new_zeros(())
    least = sizes.min()
    for parts in range(1, levels + 1):
        steps = sizes * parts / least
        if bool(((steps - steps.round()).abs() <= TOLERANCE * parts).all()):
            return least / parts
    return least

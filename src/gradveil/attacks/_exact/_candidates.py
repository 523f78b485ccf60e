"""The directions found so far, sharpened, without repetitions, the most reliable first."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ._balance import Balanced
from ._factors import Factors

_ANGLE = 1e-3
"""The angle up to which two directions are one, without noise ..."""
_WIDER, _WIDEST = 5.0, 0.03
"""... and with it, in units of the rows' relative noise, and at most."""
_SURE, _NEARLY, _MANY = 0.99, 0.999, 3
"""The leverage of a zero above which a direction hangs on this one unit: then it may be a mixture
of two examples, which is zero where both are inactive and, by its own choice, in one more unit. The
second limit is for directions with so many zeros more than any direction can have."""
_STEPS, _FIRST, _LAST = 10, 0.05, 1e-6
_ZERO = 6.0
"""Up to how many standard deviations of the noise an entry counts as 0."""


@dataclass
class Candidates:
    """Directions in balanced coordinates, with the units that each leaves at 0."""

    factors: Factors
    balanced: Balanced
    directions: Tensor = field(init=False)
    """Of length 1, shape (candidates, rank)."""
    zeros: Tensor = field(init=False)
    """Shape (candidates, units)."""
    sure: Tensor = field(init=False)
    """Whether it is one example's beyond doubt, shape (candidates,)."""

    def __post_init__(self) -> None:
        rows = self.factors.rows
        self.directions = rows.new_empty(0, self.factors.rank)
        lengths = (rows @ self.balanced.transform).norm(dim=1)
        self.noises = self.factors.noise / lengths  # of the balanced rows, in units of transform
        worst = float(self.noises.median() * self.balanced.transform.norm())
        self.angle = max(_ANGLE, min(_WIDEST, _WIDER * worst))
        self.zeros = torch.empty(0, len(rows), dtype=torch.bool, device=rows.device)
        self.sure = torch.empty(0, dtype=torch.bool, device=rows.device)

    def add(self, found: Tensor) -> None:
        """Take those of these directions that have more zeros than any direction can have."""
        usable = torch.isfinite(found).all(dim=1) & (found.norm(dim=1) > 0.5)
        found = found[usable]
        found = self._sharpen(found[_first_of_each(found, self.angle)])
        zeros = zeros_of(self.factors, found @ self.balanced.transform.T)
        surplus = zeros.sum(dim=1) - self.factors.rank
        found, zeros, surplus = (each[surplus >= 0] for each in (found, zeros, surplus))
        leverages = self._leverage(zeros)
        sure = (leverages <= _SURE) | ((leverages <= _NEARLY) & (surplus >= _MANY))
        self._take(found, zeros, sure)

    def add_completions(self, found: Tensor, inactive: Tensor) -> None:
        """Take those directions whose inactive units are all zeros; from `complete`."""
        zeros = zeros_of(self.factors, found)
        right = (zeros | ~inactive).all(dim=1)
        found = found[right] @ torch.linalg.inv(self.balanced.transform).T
        self._take(found / found.norm(dim=1, keepdim=True), zeros[right], right[right])

    def _take(self, found: Tensor, zeros: Tensor, sure: Tensor) -> None:
        self.directions = torch.cat([self.directions, found])
        self.zeros = torch.cat([self.zeros, zeros])
        self.sure = torch.cat([self.sure, sure])
        order = (self.sure.long() * -(10**6) - self.zeros.sum(dim=1)).argsort(stable=True)
        self._keep(order)
        self._keep(_first_of_each(self.directions, self.angle))

    @property
    def in_rows(self) -> Tensor:
        """The directions in the coordinates of `factors.rows`, of length 1."""
        directions: Tensor = self.directions @ self.balanced.transform.T
        lengths: Tensor = directions.norm(dim=1, keepdim=True)
        return directions / lengths

    def independent(self, sure: bool = False) -> Tensor:
        """The places of the most reliable directions that are linearly independent."""
        chosen: list[int] = []
        spanned = self.directions[:0]
        count = int(self.sure.sum()) if sure else len(self.directions)
        for place, direction in enumerate(self.directions[:count]):
            rest = direction - spanned.T @ (spanned @ direction)
            rest = rest - spanned.T @ (spanned @ rest)
            if len(chosen) < self.factors.rank and float(rest.norm()) > self.angle:
                chosen.append(place)
                spanned = torch.cat([spanned, (rest / rest.norm())[None]])
        return torch.tensor(chosen, dtype=torch.long)

    def drop(self, places: Tensor) -> None:
        """Forget these."""
        keep = torch.ones(len(self.directions), dtype=torch.bool)
        keep[places] = False
        self._keep(keep.nonzero().flatten())

    def _keep(self, places: Tensor) -> None:
        self.directions, self.zeros = self.directions[places], self.zeros[places]
        self.sure = self.sure[places]

    def _sharpen(self, directions: Tensor) -> Tensor:
        """Plain reweighting until zeros are zeros, up to noise."""
        rows, rank = self.balanced.rows, self.factors.rank
        products = (rows[:, :, None] * rows[:, None, :]).flatten(1)
        for step in range(_STEPS):
            width = rank**-0.5 * _FIRST * (_LAST / _FIRST) ** (step / (_STEPS - 1))
            lengths = (directions @ self.balanced.transform.T).norm(dim=1, keepdim=True)
            noise = lengths * self.noises
            weights = 1 / ((directions @ rows.T).square() + noise.square() + width**2)
            normal = (weights @ products).reshape(-1, rank, rank)
            directions = torch.linalg.solve(normal, directions)
            directions = directions / directions.norm(dim=1, keepdim=True)
        return directions

    def _leverage(self, zeros: Tensor) -> Tensor:
        """How much the space of the zero units' rows depends on a single one of them, at most."""
        rows, rank = self.balanced.rows, self.factors.rank
        products = (rows[:, :, None] * rows[:, None, :]).flatten(1)
        normal = (zeros.to(rows.dtype) @ products).reshape(-1, rank, rank)
        sizes, vectors = torch.linalg.eigh(normal)
        inverse = vectors[:, :, 1:] / sizes[:, None, 1:].clamp_min(1e-300).sqrt()
        leverages = (rows[None] @ inverse).square().sum(dim=2)
        return torch.where(zeros, leverages, 0.0).amax(dim=1)


def zeros_of(factors: Factors, directions: Tensor) -> Tensor:
    """Where rows · q is 0 up to noise."""
    lengths = directions.norm(dim=1, keepdim=True)
    zeros: Tensor = (directions @ factors.rows.T).abs() <= _ZERO * factors.noise * lengths
    return zeros


def _first_of_each(directions: Tensor, angle: float) -> Tensor:
    """The places of the first of all directions that are the same up to sign."""
    same = (directions @ directions.T).abs() > 1 - angle**2 / 2
    earlier = same.tril(diagonal=-1).any(dim=1)
    return (~earlier).nonzero().flatten()

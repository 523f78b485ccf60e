"""Rounds of searches until there is one direction for each example."""

import torch
from torch import Tensor

from ._assembly import Batch, assemble
from ._balance import balance
from ._candidates import Candidates
from ._completion import complete
from ._factors import Factors
from ._selection import improve
from ._sparse import search

_WORK = 1.2e8
"""Searches times units times rank² in one round: about a second of one core."""
_FEWEST, _FIRST, _LATER = 32, 16, 64
"""Searches in one round: at least, and at most for each example in the first and in later ones."""
_PATIENCE, _STUCK = 2, 6
"""Rounds without any sure direction, or without a new one, after which there is no hope."""


class Hunt:
    """Finds one direction for each example; directions that were found narrow the next round.

    With [x, 1] = p basis for an example that is still missing, p · q = 0 for all directions q that
    belong to others: outputs that leave these out lie in a smaller space. Every third round
    searches everywhere, in case one that was found is wrong.
    """

    def __init__(self, factors: Factors) -> None:
        self.factors, self.balanced = factors, balance(factors.rows)
        self.candidates = Candidates(factors, self.balanced)
        self.chosen, self.missing = torch.empty(0, dtype=torch.long), factors.rank
        self._fewest, self._rounds, self._last_new = factors.rank, 0, 0

    def run(self, generator: torch.Generator) -> Batch | None:
        """One round; a batch, right or not, once there are as many directions as examples."""
        factors, rows = self.factors, self.balanced.rows
        if factors.rank == 1:
            self._count(0)
            return assemble(factors, torch.zeros(1, len(rows), dtype=torch.bool))
        open_ = self._left_open() if self._rounds % 3 else torch.eye(factors.rank).to(rows)
        outputs = torch.linalg.qr(factors.outputs @ open_)[0]
        room = int(_WORK / (len(rows) * factors.rank**2))
        each = _LATER if self._rounds else _FIRST
        count = min(each * factors.rank, max(_FEWEST, room))
        found = search(rows.float(), outputs.float(), count, generator)
        self.candidates.add(found.double())
        self.candidates.add_completions(*complete(factors, self._left_open(), generator))
        self.chosen = self.candidates.independent()
        self._count(factors.rank - len(self.chosen))
        if self.missing:
            return None
        self.chosen = improve(self.candidates, self.chosen)
        return assemble(factors, self.candidates.zeros[self.chosen])

    def doubt(self, batch: Batch) -> None:
        """Forget the direction whose input fits worst to its own zeros."""
        self.candidates.drop(self.chosen[batch.agreement.argmin()])
        self.missing = 1

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing was found for some rounds."""
        waited = self._rounds - self._last_new
        return waited >= (_PATIENCE if self._fewest == self.factors.rank else _STUCK)

    def _count(self, missing: int) -> None:
        self.missing, self._rounds = missing, self._rounds + 1
        doubtful = self.factors.rank - len(self.candidates.independent(sure=True))
        if doubtful < self._fewest:
            self._fewest, self._last_new = doubtful, self._rounds

    def _left_open(self) -> Tensor:
        """A basis of the p that are orthogonal to the directions found; shape (rank, open ones)."""
        chosen = self.candidates.independent(sure=True)
        taken = self.candidates.in_rows[chosen]
        free = (self.factors.rank - len(chosen)) or self.factors.rank
        basis: Tensor = torch.linalg.svd(taken, full_matrices=True)[2]
        return basis[-free:].T  # all of it where nothing is missing

"""Rows of a table: softmax in place of categories, and the median over many starts."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradveil._checks import WrongValue, check_kind
from gradveil.data import TableLayout

from ._attack import FINISHED, Reconstruction
from ._channel import final_evidence
from ._descent import (
    Descent,
    Minimum,
    message_of,
    minimise,
    noise_start,
    order_like,
    sent_row,
)
from ._matching import cosine_distance
from ._targets import LabelledSearch, Run


@dataclass(frozen=True)
class TableReconstruction(Reconstruction):
    """Rows of a table, with what the starts agree on."""

    entropy: Tensor = field(default_factory=lambda: torch.empty(0))
    """The uncertainty of each column, shape (rows, columns), continuous ones first: of a category
    the entropy of the mean distribution over starts, as a share of the largest one; of a number
    that of a normal distribution with the spread of the starts, ½ log 2πe σ². Lower is surer."""


@dataclass(frozen=True)
class TabLeak(LabelledSearch):
    """Gradient matching over rows z, where the model sees softmax(z) for each group of categories.

    One-hot groups are relaxed: the search goes over logits, so that all candidates are mixtures of
    categories. Many starts are run at once. Their rows, matched to the best start's within labels,
    are pooled by the median; where starts disagree, `TableReconstruction.entropy` is high.

    An attacker who knows the defense goes on from there with the likelihood of what was sent, as
    `Adaptive` does (noise as 1/std², pruned entries as intervals), and a prior of standard normal
    numbers: -log p(sent | g(x)) + ½ Σ x² over continuous columns. The starts are pooled again.

    Reference: Vero et al., "TabLeak: Tabular Data Leakage in Federated Learning", ICML 2023,
    arXiv:2210.01785. The second stage is ours.

    Args:
        layout: Which entries of a row are which columns; that of the observation if `None`.
        steps: Of each start.
        starts: How many, from N(0, I).
        lr: Of Adam.

    >>> layout = TableLayout.of(continuous=1, categories=[3])
    >>> row = layout.encode(torch.tensor([[0.5]]), torch.tensor([[2]]))
    >>> model = build_model("mlp", sizes=[4, 8, 2])
    >>> seen = observe(model, cross_entropy, (row, torch.tensor([1])), NoDefense(), num_classes=2)
    >>> found = TabLeak(layout, steps=50, starts=2, lr=0.2)(seen, torch.Generator().manual_seed(0))
    >>> layout.categories(found.inputs)
    tensor([[2]])
    """

    knows_defense = True
    needs_defense = False

    layout: TableLayout | None = None
    steps: int = 500
    starts: int = 16
    lr: float = 0.06

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout is not None:
            check_kind(self.layout, "layout", TableLayout, "Use `TableLayout.of(3, [2, 5])`.")

    def search(self, run: Run) -> TableReconstruction:
        """The median over starts, with what they agree on."""
        observation, labels = run.observation, run.labels
        start = noise_start(observation, self.starts, run.generator)
        layout = self.layout or observation.layout
        if layout is None:
            expected = "say which entries of a row are which columns"
            raise WrongValue("layout", expected, "`None`", "Use `TableLayout.of(3, [2, 5])`.")
        layout.check(start[0], "observation.input_shape")
        sent, message = sent_row(observation), message_of(observation)

        def descend(cost: Callable[[Tensor], Tensor], start: Tensor, lr: float) -> Minimum:
            descent = Descent(self.steps, lr, "adam", "cosine", time_budget=run.watch.left())
            return minimise(
                lambda z, _: cost(layout.relax(z)), start, descent, progress=self.progress
            )

        found = descend(lambda x: cosine_distance(message(x, labels), sent), start, self.lr)
        known = observation.defense is not None or observation.mechanism is not None
        if known and found.status == FINISHED:
            pooled, _ = _pooled(found, labels, layout)
            evidence = final_evidence(observation, labels, pooled, run.generator)

            def cost(x: Tensor) -> Tensor:
                return evidence.misfit(message(x, labels)) + 0.5 * layout.numbers(x).square().sum()

            found = descend(cost, found.inputs, self.lr / 3)
        pooled, rows = _pooled(found, labels, layout)
        entropy, own = column_entropy(rows, layout), found.best
        return TableReconstruction(
            pooled, labels, own.cost, own.history, own.status, entropy=entropy
        )


def _pooled(found: Minimum, labels: Tensor, layout: TableLayout) -> tuple[Tensor, Tensor]:
    """The median over starts, and all starts in the best one's order."""
    order = found.costs.argsort()
    rows = layout.relax(found.inputs[order])
    rows = torch.stack([each[order_like(each, rows[0], labels)] for each in rows])
    return layout.harden(rows.median(0).values), rows


def column_entropy(rows: Tensor, layout: TableLayout) -> Tensor:
    """See `TableReconstruction.entropy`; rows of shape (starts, batch, width)."""
    spread = layout.numbers(rows).var(0, unbiased=False).clamp(min=1e-12)
    columns = [0.5 * (2 * math.pi * math.e * spread).log()]
    for group in layout.categorical:
        shares = rows[..., list(group)].mean(0)
        entropy = torch.special.entr(shares).sum(-1, keepdim=True)
        columns.append(entropy / math.log(len(group)))
    return torch.cat(columns, -1)

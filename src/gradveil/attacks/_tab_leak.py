"""Rows of a table: softmax in place of categories, and the median over many starts."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import WrongValue
from gradveil.data import TableLayout

from ._attack import FINISHED, Reconstruction
from ._descent import Descent, Minimum, minimise, order_like
from ._matching import final_evidence
from ._targets import LabelledSearch, Run


@dataclass(frozen=True)
class TabLeak(LabelledSearch):
    """Gradient matching over rows z, where the model sees softmax(z) for each group of categories.

    One-hot groups are relaxed: the search goes over logits, so that all candidates are mixtures of
    categories. Many starts are run at once. Their rows, matched to the best start's within labels,
    are pooled by the median.

    An attacker who knows the defense goes on from there with the likelihood of what was sent, as
    `Adaptive` does (noise as 1/std², pruned entries as intervals), and a prior of standard normal
    numbers: -log p(sent | g(x)) + ½ Σ x² over continuous columns. The starts are pooled again.

    Reference: Vero et al., "TabLeak: Tabular Data Leakage in Federated Learning", ICML 2023,
    arXiv:2210.01785. The second stage is ours.

    >>> layout = TableLayout.of(continuous=1, categories=[3])
    >>> row = layout.encode(torch.tensor([[0.5]]), torch.tensor([[2]]))
    >>> model = build_model("mlp", sizes=[4, 8, 2])
    >>> batch = row, torch.tensor([1])
    >>> seen = observe(model, cross_entropy, batch, NoDefense(), num_classes=2, layout=layout)
    >>> found = TabLeak(steps=50, starts=2, lr=0.2)(seen, torch.Generator().manual_seed(0))
    >>> layout.categories(found.inputs)
    tensor([[2]])
    """

    knows_defense = True
    needs_defense = False

    steps: int = 500
    starts: int = 16
    lr: float = 0.06

    def search(self, run: Run) -> Reconstruction:
        observation, labels, layout = run.observation, run.labels, run.observation.layout
        start = run.noise(self.starts)
        if layout is None:
            expected = "say which entries of a row are which columns"
            advice = "Give `observe` the `layout` of the data."
            raise WrongValue("observation", expected, "`layout = None`", advice)
        layout.check(start[0], "observation.input_shape")
        message, told = run.message, self.progress

        def descend(cost: Callable[[Tensor], Tensor], start: Tensor, lr: float) -> Minimum:
            descent = Descent(self.steps, lr, "adam", "cosine", time_budget=run.watch.left())
            return minimise(lambda z, _: cost(layout.relax(z)), start, descent, progress=told)

        found = descend(run.distance, start, self.lr)
        known = observation.defense is not None or observation.mechanism is not None
        if known and found.status == FINISHED:
            pooled = _pooled(found, labels, layout)
            evidence = final_evidence(observation, labels, pooled, run.generator)

            def cost(x: Tensor) -> Tensor:
                return evidence.misfit(message(x)) + 0.5 * layout.numbers(x).square().sum()

            found = descend(cost, found.inputs, self.lr / 3)
        pooled = _pooled(found, labels, layout)
        return Reconstruction(pooled, labels, found.best.cost, found.status)


def _pooled(found: Minimum, labels: Tensor, layout: TableLayout) -> Tensor:
    """The median over starts, all in the best one's order."""
    rows = layout.relax(found.inputs[found.costs.argsort()])
    rows = torch.stack([each[order_like(each, rows[0], labels)] for each in rows])
    return layout.harden(rows.median(0).values)

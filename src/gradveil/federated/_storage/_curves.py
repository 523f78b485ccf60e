"""A figure of loss and accuracy over rounds."""

from collections.abc import Mapping
from pathlib import Path

from gradveil._drawing import new_figure, save_figure

from ._history import TrainingHistory


def draw_curves(histories: Mapping[str, TrainingHistory], path: Path, window: int = 8) -> None:
    """The clients' loss (pale; its running mean strong) and what was held out; one colour a run."""
    figure = new_figure(9.5, 3.6)
    left, right = figure.subplots(1, 2)
    for index, (name, history) in enumerate(histories.items()):
        color = f"C{index}"
        told = [row for row in history.rounds if row.loss is not None]
        numbers = [row.round for row in told]
        left.plot(numbers, [row.loss for row in told], color=color, alpha=0.25, linewidth=0.8)
        left.plot(numbers, history.smoothed_loss(window), color=color, label=name)
        seen = [row for row in history.rounds if row.accuracy is not None]
        right.plot([r.round for r in seen], [r.accuracy for r in seen], "o-", color=color, ms=3)
    left.set_ylabel(f"clients' loss (mean of {window} rounds)")
    right.set_ylabel("accuracy on held-out data")
    right.set_ylim(0, 1)
    for axis in (left, right):
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    if left.get_legend_handles_labels()[0]:
        left.legend(fontsize=8)
    figure.tight_layout()
    save_figure(figure, path)

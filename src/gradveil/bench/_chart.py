"""Chart of the share of the optimum against cost."""

from collections.abc import Sequence
from pathlib import Path

from gradveil._drawing import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, new_figure, save_figure

from ._sensitivity import SensitivityRow

COLORS = (BLACK, SKY, BLUE, ORANGE, PURPLE, RED, GREEN)


def draw_sensitivity(rows: Sequence[SensitivityRow], path: Path) -> None:
    """One panel for each model and batch: cost to the right, quality upwards."""
    graded = [row for row in rows if row.share_of_optimum is not None]
    panels = list(dict.fromkeys((row.model, row.batch) for row in graded))
    names = list(dict.fromkeys(row.estimator for row in graded))
    columns = min(4, len(panels))
    lines = -(-len(panels) // columns)
    figure = new_figure(3.4 * columns, 3.1 * lines)
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    markers = "oXPsD^v*<>"
    for panel, axis in zip(panels, axes.flat, strict=False):
        for index, name in enumerate(names):
            points = [r for r in graded if (r.model, r.batch) == panel and r.estimator == name]
            axis.plot(
                [row.time_ratio for row in points],
                [row.share_of_optimum for row in points],
                markers[index % len(markers)],
                color=COLORS[index % len(COLORS)],
                markersize=8,
                label=name,
            )
        axis.set_title(f"{panel[0]}\nbatch of {panel[1]}", fontsize=9)
        axis.set_xscale("log")
        axis.set_xticks([1, 3, 10, 30], ["1", "3", "10", "30"])
        axis.set_ylim(0, 1.04)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis in axes.flat[max(0, len(panels) - columns) : len(panels)]:
        axis.set_xlabel("time / one plain gradient")
        axis.tick_params(labelbottom=True)
    for axis in axes[:, 0]:
        axis.set_ylabel("share of the optimal bound")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=4, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.09 if lines > 1 else 0.16, 1, 1))
    save_figure(figure, path)

"""Chart of the attacks' PSNR against time."""

from collections.abc import Sequence
from pathlib import Path

from gradveil._drawing import new_figure, save_figure

from ._attack import AttackRow


def draw_attacks(rows: Sequence[AttackRow], path: Path) -> None:
    """One line for each attack: seconds to the right, PSNR upwards."""
    figure = new_figure(7, 4.2)
    axis = figure.subplots()
    markers = "oXPsD^v*<>"
    for index, name in enumerate(dict.fromkeys(row.attack for row in rows)):
        mine = [row for row in rows if row.attack == name]
        axis.plot(
            [row.seconds for row in mine],
            [row.psnr for row in mine],
            marker=markers[index % len(markers)],
            label=name,
        )
    ticks = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlim(0.8 * min(row.seconds for row in rows), 1.25 * max(row.seconds for row in rows))
    axis.set_xlabel("seconds for a batch")
    axis.set_ylabel("PSNR in dB, matched")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    save_figure(figure, path)

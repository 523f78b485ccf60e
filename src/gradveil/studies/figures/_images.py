"""Rows of images, each with its own error below."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ._panels import figure, no_cells


def draw_images(
    stem: Path, rows: Sequence[tuple[str, Tensor, Sequence[str]]], width: float = 1.0
) -> None:
    """A labelled row for each (label, images (N, C, H, W) in [0, 1], note for each image)."""
    columns = max((len(images) for _, images, _ in rows), default=1)
    with figure(stem, columns, max(1, len(rows)), width, width * 1.14) as (_, axes):
        if not rows:
            no_cells(axes[0])
        for axis in axes:
            axis.set_xticks([])
            axis.set_yticks([])
            axis.grid(False)
            for side in axis.spines.values():
                side.set_visible(False)
        for index, (label, images, notes) in enumerate(rows):
            line = axes[index * columns : (index + 1) * columns]
            for axis, image, note in zip(line, images, notes, strict=False):
                grey = image.shape[0] == 1
                axis.imshow(
                    (image[0] if grey else image.permute(1, 2, 0)).numpy(force=True),
                    cmap="gray" if grey else None,
                    vmin=0,
                    vmax=1,
                    interpolation="nearest",
                )
                axis.set_xlabel(note, fontsize=6.5, labelpad=1.5)
            line[0].set_ylabel(label, fontsize=7.5)

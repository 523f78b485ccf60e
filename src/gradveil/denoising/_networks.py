"""Small networks that predict what noise hides: for images a UNet, for vectors a perceptron."""

import math
from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor, nn

EMBEDDING = 64
"""Of the noise level and the class, from which every block is scaled and shifted."""


class ImageNet(nn.Module):
    """A UNet of three sizes: half the image (four pixels become channels), a quarter and back."""

    def __init__(self, shape: Sequence[int], classes: int):
        super().__init__()
        pixels, width = 4 * shape[0], 32  # channels at half size; twice as many at a quarter
        self.condition = Condition(classes)
        self.fold, self.unfold = nn.PixelUnshuffle(2), nn.PixelShuffle(2)
        self.enter = nn.Conv2d(pixels, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 2, stride=2)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.first, self.middle, self.last = (
            nn.ModuleList(ImageBlock(channels) for _ in range(2))
            for channels in (width, 2 * width, width)
        )
        self.leave = nn.Conv2d(width, pixels, 3, padding=1)

    def forward(self, inputs: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        """The prediction; level and labels have one entry for each image."""
        told = self.condition(level, labels)

        def through(blocks: Iterable[nn.Module], hidden: Tensor) -> Tensor:
            return reduce(lambda each, block: block(each, told), blocks, hidden)

        wide = through(self.first, self.enter(self.fold(inputs)))
        wide = wide + self.up(through(self.middle, self.down(wide)))
        predicted: Tensor = self.unfold(self.leave(nn.functional.silu(through(self.last, wide))))
        return predicted


class ImageBlock(nn.Module):
    """h + conv(silu(scale ⊙ conv(silu(h)) + shift)), scale and shift from the embedding."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.told = nn.Linear(EMBEDDING, 2 * channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden: Tensor, told: Tensor) -> Tensor:
        """The maps after the block."""
        scale, shift = self.told(told)[:, :, None, None].chunk(2, dim=1)
        inner = self.first(nn.functional.silu(hidden)) * (1 + scale) + shift
        moved: Tensor = hidden + self.second(nn.functional.silu(inner))
        return moved


class VectorNet(nn.Module):
    """A residual perceptron of three hidden layers, for examples that are no images."""

    def __init__(self, shape: Sequence[int], classes: int):
        super().__init__()
        size, width = math.prod(shape), 128
        self.condition = Condition(classes)
        self.enter, self.leave = nn.Linear(size, width), nn.Linear(width, size)
        self.layers = nn.ModuleList(nn.Linear(width + EMBEDDING, width) for _ in range(3))

    def forward(self, inputs: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        """The prediction; level and labels have one entry for each example."""
        told = self.condition(level, labels)
        hidden = self.enter(inputs.flatten(1))
        for layer in self.layers:
            hidden = hidden + layer(nn.functional.silu(torch.cat([hidden, told], dim=1)))
        predicted: Tensor = self.leave(nn.functional.silu(hidden)).view_as(inputs)
        return predicted


class Condition(nn.Module):
    """The embedding of a noise level and a class, with a row more for "not told"."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.level = nn.Sequential(nn.Linear(5, EMBEDDING), nn.SiLU())
        self.label = nn.Embedding(classes + 1, EMBEDDING)
        self.mix = nn.Sequential(nn.Linear(EMBEDDING, EMBEDDING), nn.SiLU())

    def forward(self, level: Tensor, labels: Tensor) -> Tensor:
        """Shape (examples, EMBEDDING), from the level's logarithm and two of its waves."""
        waves = [f(k * level) for k in (1.0, 2.0) for f in (torch.sin, torch.cos)]
        told: Tensor = self.mix(self.level(torch.stack([level, *waves], 1)) + self.label(labels))
        return told


def network_for(shape: Sequence[int], classes: int) -> nn.Module:
    """The network for examples of this shape: an image's sides must be divisible by 4."""
    image = len(shape) == 3 and shape[1] % 4 == 0 and shape[2] % 4 == 0
    if not image:
        return VectorNet(shape, classes)
    network: nn.Module = ImageNet(shape, classes)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network

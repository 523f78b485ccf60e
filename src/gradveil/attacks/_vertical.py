"""A small set-up of vertical federated learning: every worker holds its block of each example."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

import torch
from torch import Tensor, nn

from gradveil._batches import check_batch, check_shape
from gradveil._checks import check_count, check_kind
from gradveil.defenses import Defense
from gradveil.messages import LossFunction

from ._observation import Observation, observe
from ._threat import ThreatModel

Block = tuple[slice, ...]
"""The entries of one example that one worker owns."""


def of_all(block: Block) -> Block:
    """The same entries of all examples of a batch."""
    return (slice(None), *block)


class VerticalWorker(nn.Module):
    """One worker's network: features, a first fully connected layer, an activation.

    Args:
        features: What comes before; ends flat. `nn.Flatten()` if the layer reads the block itself.
        first: The first fully connected layer.

    >>> worker = VerticalWorker(nn.Flatten(), nn.Linear(6, 4))
    >>> worker(torch.ones(2, 2, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(self, features: nn.Module, first: nn.Linear) -> None:
        super().__init__()
        self.features, self.first, self.activation = features, first, nn.Tanh()

    def forward(self, block: Tensor) -> Tensor:
        """The embedding that the worker sends up."""
        embedding: Tensor = self.activation(self.first(self.features(block)))
        return embedding


class VerticalNet(nn.Module):
    """Workers' embeddings of disjoint blocks, concatenated, under the server's head.

    As one module it is all that messages and defenses need: `GradientMessage` of it holds every
    worker's gradients.

    Args:
        blocks: What each worker owns of an example.
        workers: Their networks, in the same order.
        head: The server's network on the concatenated embeddings.

    >>> from gradveil.attacks import vertical_net
    >>> model = vertical_net((1, 8, 8), 2)
    >>> type(model).__name__, model(torch.zeros(3, 1, 8, 8)).shape
    ('VerticalNet', torch.Size([3, 2]))
    """

    def __init__(
        self, blocks: Sequence[Block], workers: Sequence[VerticalWorker], head: nn.Module
    ) -> None:
        super().__init__()
        self.blocks = tuple(blocks)
        self.workers = nn.ModuleList(workers)
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits."""
        embeddings = [
            worker(inputs[of_all(block)])
            for block, worker in zip(self.blocks, self.workers, strict=True)
        ]
        logits: Tensor = self.head(torch.cat(embeddings, dim=1))
        return logits


def vertical_net(
    input_shape: Sequence[int],
    num_classes: int,
    *,
    workers: int = 4,
    hidden: int = 64,
    channels: int | None = None,
) -> VerticalNet:
    """Equal blocks for every worker: a grid of an image's parts, or runs of a table's columns.

    Args:
        input_shape: (C, H, W) of images or (F,) of tables.
        num_classes: Number of logits.
        workers: How many; for images whose number is a square, a grid, otherwise strips.
        hidden: Outputs of each worker's first fully connected layer.
        channels: Channels of a smooth 3x3 convolution before it; `None`: it reads the block itself.

    >>> vertical_net((1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    for name, value in (("workers", workers), ("hidden", hidden), ("num_classes", num_classes)):
        check_count(value, name)
    if channels is not None:
        check_count(channels, "channels")
    check_shape(input_shape, "input_shape")
    if not input_shape:
        raise ValueError(
            "Parameter `input_shape` should be (C, H, W) or (F,). Found `input_shape = ()`."
        )
    blocks = split_blocks(tuple(input_shape), workers)
    nets = []
    for block in blocks:
        example = torch.zeros(tuple(input_shape))[block].unsqueeze(0)
        features = _features(example, channels)
        nets.append(VerticalWorker(features, nn.Linear(features(example).shape[1], hidden)))
    return VerticalNet(blocks, nets, nn.Linear(hidden * workers, num_classes))


def split_blocks(input_shape: tuple[int, ...], workers: int) -> list[Block]:
    """Disjoint blocks that cover an example.

    >>> len(split_blocks((3, 32, 32), 4)), split_blocks((6,), 2)
    (4, [(slice(0, 3, None),), (slice(3, 6, None),)])
    """
    side = isqrt(workers)
    if len(input_shape) == 3 and side * side == workers:
        rows, columns = _runs(input_shape[1], side), _runs(input_shape[2], side)
        return [(slice(None), row, column) for row in rows for column in columns]
    leading = (slice(None),) * (len(input_shape) - 1)
    return [(*leading, run) for run in _runs(input_shape[-1], workers)]


def _runs(length: int, count: int) -> list[slice]:
    if count > length:
        raise ValueError(
            f"Parameter `workers` should leave at least one entry for each. Found {count} parts of"
            f" {length} entries. Use fewer workers."
        )
    edges = [round(i * length / count) for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _features(example: Tensor, channels: int | None) -> nn.Module:
    if channels is None:
        return nn.Flatten()
    convolution = nn.Conv2d(example.shape[1], channels, kernel_size=3, padding=1)
    return nn.Sequential(convolution, nn.Tanh(), nn.Flatten())


@dataclass(frozen=True)
class VerticalObservation:
    """Messages of several iterations with the same parameters, and which examples each one used.

    In vertical federated learning all parties must agree on the examples of a batch, so the
    server knows the indices.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
    >>> from gradveil.attacks import observe_vertical, vertical_net
    >>> generator = torch.Generator().manual_seed(0)
    >>> data = torch.rand(4, 1, 8, 8, generator=generator), torch.tensor([0, 1, 1, 0])
    >>> model = vertical_net((1, 8, 8), 2)
    >>> seen = observe_vertical(
    ...     model, cross_entropy, data, NoDefense(), num_classes=2, batch_size=2, iterations=8,
    ...     generator=generator,
    ... )
    >>> len(seen.observations), seen.size
    (8, 4)
    """

    observations: tuple[Observation, ...]
    indices: tuple[Tensor, ...]
    """For each iteration the numbers of its examples, from 0 to `size` - 1."""
    size: int
    """How many examples there are in all."""

    def __post_init__(self) -> None:
        lengths = [o.batch_size for o in self.observations]
        if lengths != [len(i) for i in self.indices] or not lengths:
            raise ValueError(
                "Parameter `indices` should hold one index for each example of each observation."
                f" Found {[len(i) for i in self.indices]} indices for batches of {lengths}."
            )
        if any(o.model is not self.observations[0].model for o in self.observations):
            raise ValueError(
                "Parameter `observations` should be of one model, with the same parameters. Found"
                " several. Observe iterations between two updates."
            )


def observe_vertical(
    model: VerticalNet,
    loss_fn: LossFunction,
    data: tuple[Tensor, Tensor],
    defense: Defense,
    *,
    num_classes: int,
    batch_size: int,
    iterations: int,
    input_range: tuple[Tensor, Tensor] | None = None,
    generator: torch.Generator,
) -> VerticalObservation:
    """Play the federation: random batches of the data, each message defended. No labels leave.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
    >>> from gradveil.attacks import vertical_net
    >>> generator = torch.Generator().manual_seed(0)
    >>> data = torch.rand(4, 1, 8, 8, generator=generator), torch.tensor([0, 1, 1, 0])
    >>> model = vertical_net((1, 8, 8), 2)
    >>> seen = observe_vertical(
    ...     model, cross_entropy, data, NoDefense(), num_classes=2, batch_size=2, iterations=8,
    ...     generator=generator,
    ... )
    >>> len(seen.observations), seen.size
    (8, 4)
    """
    check_kind(model, "model", VerticalNet, "Make one with `vertical_net`.")
    inputs, targets = check_batch(data, "data")
    check_count(batch_size, "batch_size")
    check_count(iterations, "iterations")
    indices = [
        torch.randperm(len(inputs), generator=generator)[:batch_size] for _ in range(iterations)
    ]
    observations = [
        observe(
            model, loss_fn, (inputs[chosen], targets[chosen]), defense,
            threat=ThreatModel(labels="unknown"), num_classes=num_classes,
            input_range=input_range, generator=generator,
        )
        for chosen in indices
    ]  # fmt: skip
    return VerticalObservation(tuple(observations), tuple(indices), len(inputs))

"""CAFE, and the small set-up of vertical federated learning that it attacks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import isqrt

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from gradveil._checks import WrongValue, check_count, check_examples, check_kind, check_shape
from gradveil._random import generator_or_fresh, normal_like
from gradveil._tensors import Tensors, relative_misfit
from gradveil.defenses import Defense
from gradveil.messages import LossFunction

from ._attack import FINISHED, Reconstruction, Search
from ._descent import Watch, clamp, minimise_lbfgs
from ._observation import Observation, ThreatModel, observe
from ._priors import total_variation


class VerticalNet(nn.Module):
    """Workers' embeddings tanh(first(features(block))) of disjoint blocks, under the server's head.

    Args:
        input_shape: (C, H, W) of images or (F,) of tables.
        num_classes: Number of logits.
        workers: How many; for images whose number is a square, a grid, otherwise strips.
        hidden: Outputs of each worker's first fully connected layer.
        channels: Channels of a smooth 3x3 convolution before it; `None`: it reads the block itself.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        *,
        workers: int = 4,
        hidden: int = 64,
        channels: int | None = None,
    ) -> None:
        super().__init__()
        counts = {"workers": workers, "hidden": hidden, "num_classes": num_classes}
        for name, value in {**counts, "channels": 1 if channels is None else channels}.items():
            check_count(value, name)
        check_shape(input_shape, "input_shape")
        if not input_shape:
            raise WrongValue("input_shape", "be (C, H, W) or (F,)", "()")
        self.blocks = [(slice(None), *own) for own in split_blocks(tuple(input_shape), workers)]
        self.features, self.first = nn.ModuleList(), nn.ModuleList()
        for block in self.blocks:
            example, features = torch.zeros(1, *input_shape)[block], nn.Sequential()
            if channels is not None:
                conv = nn.Conv2d(example.shape[1], channels, 3, padding=1)
                features.extend([conv, nn.Tanh()])
            self.features.append(features.append(nn.Flatten()))
            self.first.append(nn.Linear(features(example).shape[1], hidden))
        self.head = nn.Linear(hidden * workers, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        workers = zip(self.blocks, self.features, self.first, strict=True)
        sent_up = [torch.tanh(first(features(inputs[own]))) for own, features, first in workers]
        logits: Tensor = self.head(torch.cat(sent_up, dim=1))
        return logits


def split_blocks(input_shape: tuple[int, ...], workers: int) -> list[tuple[slice, ...]]:
    """Disjoint blocks that cover an example.

    >>> len(split_blocks((3, 32, 32), 4)), split_blocks((6,), 2)
    (4, [(slice(0, 3, None),), (slice(3, 6, None),)])
    """
    side, grid = isqrt(workers), len(input_shape) == 3
    counts = (side, side) if grid and side * side == workers else (workers,)
    axes, ends = [], input_shape[-len(counts) :]
    for length, count in zip(ends, counts, strict=True):
        if count > length:
            found = f"{count} parts of {length} entries"
            expected = "leave at least one entry for each"
            raise WrongValue("workers", expected, found, "Use fewer workers.")
        edges = [round(i * length / count) for i in range(count + 1)]
        axes.append([slice(a, b) for a, b in pairwise(edges)])
    leading = (slice(None),) * (len(input_shape) - len(counts))
    return [(*leading, *own) for own in product(*axes)]


@dataclass(frozen=True)
class VerticalObservation:
    """Messages with the same parameters, and which examples each used: all parties must know these.

    Made by `CAFE.observe`.
    """

    model: VerticalNet
    observations: tuple[Observation, ...]
    usage: Tensor
    """S, 1 where an iteration (row) used an example (column)."""

    def sent(self, name: str) -> Tensor:
        """What was sent of a parameter, one row for each iteration."""
        return torch.stack([o.sent[name] for o in self.observations])


@dataclass(frozen=True)
class CAFE(Search):
    """Three steps for each worker, from its first fully connected layer u = W h + b down.

    With S (iterations × examples) the known indices, 1 where iteration t used example n, v_n the
    gradient with respect to u_n and h_n the input of the layer:

    1. ∂L/∂b of iteration t is Σ_n S_tn v_n: linear equations for V, solvable if S has full rank.
    2. ∂L/∂W of iteration t is Σ_n S_tn v_n h_nᵀ: linear equations for H. Features that are the data
       themselves are kept in its range.
    3. The block's data: min ‖features(x) - H‖² / ‖H‖² + the distance of the gradients of the layers
       before, which follow from V (no label and nobody else's network is needed), + λ TV(x).

    The paper descends in the first two steps; these are least squares problems, solved here at
    once. The parameters are the same in all iterations.

    Reference: Jin et al., "CAFE: Catastrophic Data Leakage in Vertical Federated Learning",
    NeurIPS 2021, Algorithm 1 and Theorems 1 and 2.

    Args:
        steps: L-BFGS iterations of step 3.
        total_variation: λ.

    >>> generator = torch.Generator().manual_seed(0)
    >>> data = torch.rand(4, 1, 8, 8, generator=generator), torch.tensor([0, 1, 1, 0])
    >>> seen = CAFE.observe(
    ...     CAFE.network((1, 8, 8), 2), cross_entropy, data, NoDefense(), num_classes=2,
    ...     batch_size=2, iterations=8, generator=generator,
    ... )
    >>> CAFE(steps=5)(seen, generator).inputs.shape
    torch.Size([4, 1, 8, 8])
    """

    network = VerticalNet
    """The models that it attacks, and that `observe` takes."""

    steps: int = 200
    total_variation: float = 1e-6

    @staticmethod
    def observe(
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
        """Play the federation: random batches of the data, each defended. No labels leave."""
        check_kind(model, "model", VerticalNet, "Use `CAFE.network(input_shape, num_classes)`.")
        inputs, targets = check_examples(data, "data")
        check_count(batch_size, "batch_size")
        check_count(iterations, "iterations")
        usage = torch.zeros(iterations, len(inputs), dtype=inputs.dtype, device=inputs.device)
        order = [torch.randperm(len(inputs), generator=generator)[:batch_size] for _ in usage]
        for row, chosen in zip(usage, order, strict=True):
            row[chosen.to(row.device)] = 1
        observations = tuple(
            observe(
                model, loss_fn, (inputs[chosen], targets[chosen]), defense, num_classes=num_classes,
                threat=ThreatModel(labels="unknown"), input_range=input_range, generator=generator,
            )
            for chosen in order
        )  # fmt: skip
        if (rank := int(torch.linalg.matrix_rank(usage))) < len(inputs):
            found = f"{iterations} batches whose indices have rank {rank}"
            expected = f"determine {len(inputs)} examples"
            raise WrongValue("iterations", expected, found, "Observe more iterations.")
        return VerticalObservation(model, observations, usage)

    def __call__(
        self,
        observation: Observation | VerticalObservation,
        generator: torch.Generator | None = None,
    ) -> Reconstruction:
        """Attack a `VerticalObservation`; the targets are -1: CAFE recovers no labels."""
        check_kind(observation, "observation", VerticalObservation, "Use `CAFE.observe`.")
        assert isinstance(observation, VerticalObservation)
        seen, model, usage = observation.observations[0], observation.model, observation.usage
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        shape = (usage.shape[1], *seen.input_shape)
        inputs, points = usage.new_zeros(shape), []
        for number, block in enumerate(model.blocks):
            start = normal_like(inputs[block], generator) * 0.1
            low, high = (b if b is None else b.expand(shape)[block] for b in (seen.low, seen.high))
            # pinv, as lstsq gives other last bits from call to call
            deltas = torch.linalg.pinv(usage) @ observation.sent(f"first.{number}.bias")
            rows = torch.cat([(deltas * used[:, None]).T for used in usage])
            weight = observation.sent(f"first.{number}.weight")
            features = torch.linalg.pinv(rows) @ weight.flatten(0, 1)
            if not list(model.features[number].parameters()):
                start = clamp(features.view(start.shape), low, high)
                features = start.flatten(1)
            cost = self._cost(observation, number, deltas, features)
            told, steps = self.progress, self.steps
            points.append(minimise_lbfgs(cost, start, steps=steps, watch=watch, progress=told))
            inputs[block] = clamp(points[-1].inputs, low, high)
        status = next((p.status for p in points if p.status != FINISHED), FINISHED)
        targets = torch.full((len(inputs),), -1, device=inputs.device)
        return Reconstruction(inputs, targets, sum(p.cost for p in points), status)

    def _cost(
        self, observation: VerticalObservation, number: int, deltas: Tensor, features: Tensor
    ) -> Callable[[Tensor], Tensor]:
        """What step 3 minimises over one worker's block of all examples."""
        model, usage = observation.model, observation.usage
        net, weight = model.features[number], model.first[number].weight.detach()  # type: ignore[operator]
        parameters = {name: p.detach() for name, p in net.named_parameters()}
        totals = {n: observation.sent(f"features.{number}.{n}").sum(0) for n in parameters}
        slopes = deltas @ weight

        def summed(own: Tensors, block: Tensor) -> Tensor:
            return torch.sum(usage @ (functional_call(net, own, (block,)) * slopes))

        def cost(block: Tensor) -> Tensor:
            total = relative_misfit(functional_call(net, parameters, (block,)), features)
            if totals:  # of the layers before the first fully connected one, over all iterations
                total = total + relative_misfit(grad(summed)(parameters, block), totals)
            return total + self.total_variation * total_variation(block, corner=1e-3)

        return cost

"""CAFE, and the small set-up of vertical federated learning that it attacks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from gradveil._batches import check_batch, check_shape
from gradveil._checks import check_count, check_kind
from gradveil._random import generator_or_fresh, normal_like
from gradveil._tensors import relative_misfit
from gradveil._typing import Tensors
from gradveil.defenses import Defense
from gradveil.messages import LossFunction

from ._attack import FINISHED, Attack, Progress, Reconstruction, check_settings
from ._descent import Watch, clamp
from ._lbfgs import minimise_lbfgs
from ._observation import Observation, ThreatModel, observe
from ._priors import total_variation

Block = tuple[slice, ...]
"""The entries of an example that one worker owns; of a batch with the examples' axis in front."""


class VerticalNet(nn.Module):
    """Workers' embeddings tanh(first(features(block))) of disjoint blocks, under the server's head.

    As one module it is all that messages and defenses need: `GradientMessage` of it holds every
    worker's gradients.

    Args:
        input_shape: (C, H, W) of images or (F,) of tables.
        num_classes: Number of logits.
        workers: How many; for images whose number is a square, a grid, otherwise strips.
        hidden: Outputs of each worker's first fully connected layer.
        channels: Channels of a smooth 3x3 convolution before it; `None`: it reads the block itself.

    >>> VerticalNet((1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
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
            raise ValueError("Parameter `input_shape` should be (C, H, W) or (F,). Found ().")
        self.blocks = [(slice(None), *own) for own in split_blocks(tuple(input_shape), workers)]
        self.features, self.first = nn.ModuleList(), nn.ModuleList()
        for block in self.blocks:
            example, features = torch.zeros(1, *input_shape)[block], nn.Sequential()
            if channels is not None:
                features.append(nn.Conv2d(example.shape[1], channels, 3, padding=1))
                features.append(nn.Tanh())
            self.features.append(features.append(nn.Flatten()))
            self.first.append(nn.Linear(features(example).shape[1], hidden))
        self.head = nn.Linear(hidden * workers, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits."""
        workers = zip(self.blocks, self.features, self.first, strict=True)
        sent_up = [torch.tanh(first(features(inputs[own]))) for own, features, first in workers]
        logits: Tensor = self.head(torch.cat(sent_up, dim=1))
        return logits


def split_blocks(input_shape: tuple[int, ...], workers: int) -> list[Block]:
    """Disjoint blocks that cover an example.

    >>> len(split_blocks((3, 32, 32), 4)), split_blocks((6,), 2)
    (4, [(slice(0, 3, None),), (slice(3, 6, None),)])
    """

    def runs(length: int, count: int) -> list[slice]:
        if count > length:
            raise ValueError(
                "Parameter `workers` should leave at least one entry for each. Found"
                f" {count} parts of {length} entries. Use fewer workers."
            )
        edges = [round(i * length / count) for i in range(count + 1)]
        return [slice(a, b) for a, b in pairwise(edges)]

    side = isqrt(workers)
    if len(input_shape) == 3 and side * side == workers:
        rows, columns = runs(input_shape[1], side), runs(input_shape[2], side)
        return [(slice(None), row, column) for row in rows for column in columns]
    leading = (slice(None),) * (len(input_shape) - 1)
    return [(*leading, run) for run in runs(input_shape[-1], workers)]


@dataclass(frozen=True)
class VerticalObservation:
    """Messages of several iterations with the same parameters, and which examples each one used.

    In vertical federated learning all parties must agree on the examples of a batch, so the
    server knows the indices. Made by `CAFE.observe`.
    """

    model: VerticalNet
    observations: tuple[Observation, ...]
    usage: Tensor
    """S, 1 where an iteration (row) used an example (column)."""

    def sent(self, name: str) -> Tensor:
        """What was sent of a parameter, one row for each iteration."""
        return torch.stack([o.sent[name] for o in self.observations])


@dataclass(frozen=True)
class CAFE(Attack):
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
        time_budget: Seconds after which the best so far is returned; `None`: no limit.
        progress: Called with (step, steps, cost) of the present worker's block.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
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
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_settings(self, counts=("steps",), not_negative=("total_variation",))

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
        inputs, targets = check_batch(data, "data")
        check_count(batch_size, "batch_size")
        check_count(iterations, "iterations")
        order = [torch.randperm(len(inputs), generator=generator) for _ in range(iterations)]
        usage = torch.zeros(iterations, len(inputs), dtype=inputs.dtype, device=inputs.device)
        observations = []
        for row, each in zip(usage, order, strict=True):
            chosen = each[:batch_size]
            row[chosen.to(row.device)] = 1
            observations.append(
                observe(
                    model, loss_fn, (inputs[chosen], targets[chosen]), defense,
                    threat=ThreatModel(labels="unknown"), num_classes=num_classes,
                    input_range=input_range, generator=generator,
                )
            )  # fmt: skip
        if (rank := int(torch.linalg.matrix_rank(usage))) < len(inputs):
            raise ValueError(
                f"Parameter `iterations` should determine {len(inputs)} examples. Found"
                f" {iterations} batches whose indices have rank {rank}. Observe more iterations."
            )
        return VerticalObservation(model, tuple(observations), usage)

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
            deltas = _least_squares(usage, observation.sent(f"first.{number}.bias"))
            rows = torch.cat([(deltas * used[:, None]).T for used in usage])
            weight = observation.sent(f"first.{number}.weight")
            features = _least_squares(rows, weight.flatten(0, 1))
            if not list(model.features[number].parameters()):
                start = clamp(features.view(start.shape), low, high)
                features = start.flatten(1)
            cost = self._cost(observation, number, deltas, features)
            point = minimise_lbfgs(
                cost, start, steps=self.steps, watch=watch, progress=self.progress
            )
            inputs[block] = clamp(point.inputs, low, high)
            points.append(point)
        history = [each for point in points for each in point.history]
        status = next((p.status for p in points if p.status != FINISHED), FINISHED)
        targets = torch.full((len(inputs),), -1, device=inputs.device)
        return Reconstruction(inputs, targets, sum(p.cost for p in points), history, status)

    def _cost(
        self, observation: VerticalObservation, number: int, deltas: Tensor, features: Tensor
    ) -> Callable[[Tensor], Tensor]:
        """What step 3 minimises over one worker's block of all examples."""
        model, usage = observation.model, observation.usage
        net, weight = model.features[number], model.first[number].weight.detach()  # type: ignore[operator]
        parameters = {name: p.detach() for name, p in net.named_parameters()}
        totals = {n: observation.sent(f"features.{number}.{n}").sum(0) for n in parameters}
        slopes = deltas @ weight

        def made(parameters: Tensors, block: Tensor) -> Tensor:
            found: Tensor = functional_call(net, parameters, (block,))
            return found

        def cost(block: Tensor) -> Tensor:
            total = relative_misfit(made(parameters, block), features)
            if totals:  # of the layers before the first fully connected one, over all iterations
                pulled = grad(lambda own: (usage @ (made(own, block) * slopes)).sum())(parameters)
                total = total + relative_misfit(pulled, totals)
            return total + self.total_variation * total_variation(block, corner=1e-3)

        return cost


def _least_squares(matrix: Tensor, right: Tensor) -> Tensor:
    """min ‖A x - b‖² + ε² ‖x‖² by QR, ε at rounding level: defined for any rank.

    `torch.linalg.lstsq` gives other last bits from call to call; same seed should be same bytes.
    """
    size = matrix.shape[1]
    ridge = torch.finfo(matrix.dtype).eps * matrix.norm()
    identity = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    factors = torch.linalg.qr(torch.cat([matrix, ridge * identity]))
    padded = torch.cat([right, right.new_zeros(size, right.shape[1])])
    solution: Tensor = torch.linalg.solve_triangular(factors.R, factors.Q.T @ padded, upper=True)
    return solution

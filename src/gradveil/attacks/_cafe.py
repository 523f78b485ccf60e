"""CAFE: large batches from vertical federated learning."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad

from gradveil._checks import check_count, check_kind, check_not_negative, check_optional_callable
from gradveil._random import generator_or_fresh, normal_like
from gradveil._tensors import relative_misfit
from gradveil._typing import Tensors

from ._attack import Attack, Progress
from ._evidence import total_variation
from ._observation import Observation
from ._reconstruction import FINISHED, Reconstruction
from ._search import Point, Watch, clamp, minimise_lbfgs
from ._vertical import Block, VerticalNet, VerticalObservation, VerticalWorker, of_all

_CORNER = 1e-3  # of the total variation, for quasi-Newton steps


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
    once. The parameters must be the same in all iterations.

    Reference: Jin et al., "CAFE: Catastrophic Data Leakage in Vertical Federated Learning",
    NeurIPS 2021, Algorithm 1 and Theorems 1 and 2.

    Args:
        steps: L-BFGS iterations of step 3.
        total_variation: λ.
        time_budget: Seconds after which the best so far is returned; `None`: no limit.
        progress: Called with (step, steps, cost) of the present worker's block.

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
    >>> CAFE(steps=5)(seen, generator).inputs.shape
    torch.Size([4, 1, 8, 8])
    """

    steps: int = 200
    total_variation: float = 1e-6
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_count(self.steps, "steps")
        check_not_negative(self.total_variation, "total_variation")
        if self.time_budget is not None:
            check_not_negative(self.time_budget, "time_budget")
        check_optional_callable(self.progress, "progress", "Give a function, or None.")

    def __call__(
        self,
        observation: Observation | VerticalObservation,
        generator: torch.Generator | None = None,
    ) -> Reconstruction:
        """Attack a `VerticalObservation`; the targets are -1: CAFE recovers no labels."""
        check_kind(observation, "observation", VerticalObservation, "Use `observe_vertical`.")
        assert isinstance(observation, VerticalObservation)
        first = observation.observations[0]
        if not isinstance(first.model, VerticalNet):
            raise TypeError(
                "Parameter `observation` should be of a `VerticalNet`. Found a"
                f" {type(first.model).__name__}. Make one with `vertical_net`."
            )
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        usage = _usage(observation)
        reference = next(iter(first.sent.values()))
        inputs = reference.new_zeros(observation.size, *first.input_shape)
        points = []
        for number, block in enumerate(first.model.blocks):
            start = normal_like(inputs[of_all(block)], generator) * 0.1
            point = self._worker(observation, usage, number, block, start, watch)
            inputs[of_all(block)] = point.variables[0]
            points.append(point)
        return _assembled(observation, inputs, points)

    def _worker(
        self,
        observation: VerticalObservation,
        usage: Tensor,
        number: int,
        block: Block,
        start: Tensor,
        watch: Watch,
    ) -> Point:
        first = observation.observations[0]
        assert isinstance(first.model, VerticalNet)
        worker = first.model.workers[number]
        assert isinstance(worker, VerticalWorker)
        prefix = f"workers.{number}."
        sent = [_part(o.sent, f"{prefix}first.") for o in observation.observations]
        deltas = _least_squares(usage, torch.stack([g["bias"] for g in sent]))
        layer_inputs = _layer_inputs(usage, deltas, [g["weight"] for g in sent])
        low, high = (_block_of(b, block, first.input_shape) for b in (first.low, first.high))
        if not list(worker.features.parameters()):
            start = clamp(layer_inputs.reshape(start.shape), low, high)
            layer_inputs = start.flatten(1)
        lower = [_part(o.sent, f"{prefix}features.") for o in observation.observations]
        cost = _BlockCost(worker, usage, deltas, layer_inputs, lower, self.total_variation)
        point = minimise_lbfgs(
            cost, (start,), steps=self.steps, watch=watch, progress=self.progress
        )
        point.variables = (clamp(point.variables[0], low, high),)
        return point


class _BlockCost:
    """What step 3 minimises over one worker's block of all examples."""

    def __init__(
        self,
        worker: VerticalWorker,
        usage: Tensor,
        deltas: Tensor,
        layer_inputs: Tensor,
        sent: list[Tensors],
        total_variation: float,
    ) -> None:
        self.worker, self.usage, self.total_variation = worker, usage, total_variation
        self.layer_inputs = layer_inputs
        self.totals = {k: torch.stack([g[k] for g in sent]).sum(dim=0) for k in sent[0]}
        weight = worker.first.weight.detach()
        self.feature_deltas = deltas @ weight
        self.parameters = {k: p.detach() for k, p in worker.features.named_parameters()}

    def __call__(self, block: Tensor) -> Tensor:
        features = functional_call(self.worker.features, self.parameters, (block,))
        cost = relative_misfit(features, self.layer_inputs)
        if self.totals:
            cost = cost + self._gradient_distance(block)
        return cost + self.total_variation * total_variation(block, corner=_CORNER)

    def _gradient_distance(self, block: Tensor) -> Tensor:
        """Of the layers before the first fully connected one, over all iterations."""

        def pulled(parameters: Tensors) -> Tensor:
            features = functional_call(self.worker.features, parameters, (block,))
            total: Tensor = (self.usage @ (features * self.feature_deltas)).sum()
            return total

        whole: Tensors = grad(pulled)(self.parameters)
        return relative_misfit(whole, self.totals)


def _layer_inputs(usage: Tensor, deltas: Tensor, weights: list[Tensor]) -> Tensor:
    """H from Σ_n S_tn v_n h_nᵀ = ∂L/∂W_t for all t, by least squares."""
    rows = torch.cat([(deltas * used[:, None]).T for used in usage])  # (iterations · units, N)
    return _least_squares(rows, torch.cat(weights))


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


def _usage(observation: VerticalObservation) -> Tensor:
    """S, and a clear error where it does not determine the examples."""
    reference = next(iter(observation.observations[0].sent.values()))
    usage = reference.new_zeros(len(observation.indices), observation.size)
    for row, chosen in zip(usage, observation.indices, strict=True):
        row[chosen.to(row.device)] = 1
    rank = int(torch.linalg.matrix_rank(usage))
    if rank < observation.size:
        raise ValueError(
            f"Parameter `observation` should determine {observation.size} examples. Found"
            f" {len(usage)} iterations whose indices have rank {rank}. Observe more iterations,"
            " with other batches."
        )
    return usage


def _part(values: Tensors, prefix: str) -> Tensors:
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _block_of(bound: Tensor | None, block: Block, shape: tuple[int, ...]) -> Tensor | None:
    return None if bound is None else bound.expand(shape)[block]


def _assembled(
    observation: VerticalObservation, inputs: Tensor, points: list[Point]
) -> Reconstruction:
    history = [(step, cost) for point in points for step, cost in point.history]
    status = next((p.status for p in points if p.status != FINISHED), FINISHED)
    targets = torch.full((observation.size,), -1, device=inputs.device)
    return Reconstruction(inputs, targets, sum(p.cost for p in points), history, status)

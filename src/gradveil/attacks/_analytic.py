"""The closed form for a fully connected first layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_positive
from gradveil._random import generator_or_fresh

from ._attack import Attack, Reconstruction
from ._descent import clamp
from ._labels import labels_or_unknown
from ._model_layers import Call, input_layer, linear_calls, random_inputs
from ._observation import Observation, check_observation


@dataclass(frozen=True)
class Analytic(Attack):
    """The inputs of a fully connected first layer, by division.

    For u = W x + b, row i of the gradients is ∂L/∂W_i = Σ_n δ_ni x_nᵀ and ∂L/∂b_i = Σ_n δ_ni, so

        x = (∂L/∂W_i) / (∂L/∂b_i)

    in every row that only one example reaches. For one example these are all rows, which are
    combined by least squares, x_j = Σ_i b_i W_ij / Σ_i b_i² (b, W: the gradients), over the entries
    that were sent: exact without noise, the average with weights b_i² under it.

    In a batch, rows with the same ratio belong to one example (ReLU units that only it activates):
    these come out exactly, most agreeing rows first. What is missing is filled with the ratios of
    the rows, in range if the range is known, that the ones found so far explain worst. These are
    mixtures of examples, not copies. The loss is the share of the layer's gradient that does not
    lie in the span of what was found, 0 if every example was.

    FedAvg's update is read the same way (signs and rates cancel): exact for one local step.

    Reference: Phong et al., "Privacy-Preserving Deep Learning via Additively Homomorphic
    Encryption", IEEE TIFS 2018; Geiping et al., "Inverting Gradients", NeurIPS 2020, Prop. 3.1.

    Args:
        tolerance: Relative distance up to which two rows' ratios count as the same.

    >>> Analytic()(seen).inputs.round(decimals=2)
    tensor([[0.2000, 0.7000, 0.4000]])
    """

    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        check_positive(self.tolerance, "tolerance")

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; the generator is needed only for labels that are not granted."""
        check_observation(observation)
        generator = generator_or_fresh(generator)
        layer = first_layer(observation, generator)
        weight, bias = observation.sent[layer.weight], observation.sent[layer.bias]
        if observation.batch_size == 1:
            flat_inputs = combine_rows(weight, bias).unsqueeze(0)
        else:
            flat_inputs = self._separate(weight, bias, observation)
        shape = (observation.batch_size, *observation.input_shape)
        inputs = clamp(flat_inputs.reshape(shape), observation.low, observation.high)
        loss = unexplained(weight, bias, flat_inputs)
        return Reconstruction(inputs, labels_or_unknown(observation, generator), loss)

    def _separate(self, weight: Tensor, bias: Tensor, observation: Observation) -> Tensor:
        rows = torch.nonzero(bias.abs() > 1e-6 * bias.abs().max()).flatten()
        rows = rows[bias[rows].abs().argsort(descending=True)]
        ratios = weight[rows] / bias[rows, None]
        recovered = self._agreeing(weight, bias, rows, ratios)[: observation.batch_size]
        order = _in_range_first(ratios, observation)
        while len(recovered) < observation.batch_size and len(rows) > 0:
            residual = _residual(
                weight[rows], bias[rows], torch.stack(recovered) if recovered else None
            )
            worst = (residual * (order == order.min())).argmax() if recovered else order.argmin()
            recovered.append(ratios[worst])
            order[worst] = 2
        missing = observation.batch_size - len(recovered)
        return torch.stack([*recovered, *[torch.zeros_like(weight[0])] * missing])

    def _agreeing(self, weight: Tensor, bias: Tensor, rows: Tensor, ratios: Tensor) -> list[Tensor]:
        """One estimate for each set of at least two rows of the same ratio, largest set first."""
        sizes = ratios.norm(dim=1)
        same = torch.cdist(ratios, ratios) <= self.tolerance * torch.maximum(
            sizes[:, None], sizes[None, :]
        )
        left = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        groups = []
        for row in same.sum(dim=1).argsort(descending=True, stable=True).tolist():
            members = same[row] & left
            if bool(left[row]) and int(members.sum()) > 1:
                groups.append(rows[members])
            left &= ~members
        return [combine_rows(weight[group], bias[group]) for group in groups]


def first_layer(observation: Observation, generator: torch.Generator) -> Call:
    """The first linear layer, if it reads the inputs themselves and its gradients were sent."""
    call = input_layer(observation, generator)
    if call is not None and {call.weight, call.bias} <= observation.sent.keys():
        return call
    calls, _ = linear_calls(observation, random_inputs(observation, 1, generator))
    first = f"`{calls[0].name}`, {calls[0].layer}" if calls else "no linear layer"
    raise ValueError(
        "Parameter `observation.model` should start with a trainable `nn.Linear` with a bias that"
        f" reads the flattened inputs. Found {first}, which does not read them or has no bias. Use"
        " `InvertingGradients` or `IDLG` for other models."
    )


def combine_rows(weight: Tensor, bias: Tensor) -> Tensor:
    """x_j = Σ_i b_i W_ij / Σ_i b_i² over the rows i with b_i and W_ij not 0 (pruned)."""
    seen = (weight != 0) & (bias != 0)[:, None]
    power = (bias.square()[:, None] * seen).sum(dim=0)
    top = (bias[:, None] * weight * seen).sum(dim=0)
    return torch.where(power > 0, top / power.clamp_min(torch.finfo(bias.dtype).tiny), 0.0)


def unexplained(weight: Tensor, bias: Tensor, recovered: Tensor) -> float:
    """The share of ‖[W, b]‖² outside of the span of the rows [x̂_n, 1]."""
    total = weight.square().sum() + bias.square().sum()
    return float(_residual(weight, bias, recovered).sum() / total.clamp_min(1e-30))


def _residual(weight: Tensor, bias: Tensor, recovered: Tensor | None) -> Tensor:
    """The squared part of each row of [W, b] that the inputs found so far do not explain."""
    rows = torch.cat([weight, bias[:, None]], dim=1)
    if recovered is None:
        return rows.square().sum(dim=1)
    basis = torch.cat([recovered, torch.ones_like(recovered[:, :1])], dim=1)
    directions, sizes, _ = torch.linalg.svd(basis.T, full_matrices=False)
    kept: Tensor = directions[:, sizes > 1e-6 * sizes.max()]
    return (rows - rows @ kept @ kept.T).square().sum(dim=1)


def _in_range_first(ratios: Tensor, observation: Observation) -> Tensor:
    """0 for rows whose ratio lies in the range of the data, 1 for others."""
    shaped = ratios.reshape(len(ratios), *observation.input_shape)
    inside = clamp(shaped, observation.low, observation.high)
    slack = 1e-3 * (1 + shaped.abs())
    return ((shaped - inside).abs() > slack).flatten(1).any(dim=1).long()

"""The closed form for a fully connected first layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import WrongValue
from gradveil._random import generator_or_fresh

from ._attack import Attack, Reconstruction
from ._descent import clamp
from ._labels import labels_or_unknown
from ._model_layers import Call, input_layer
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

    >>> Analytic()(seen).inputs.round(decimals=2)
    tensor([[0.2000, 0.7000, 0.4000]])
    """

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; the generator is needed only for labels that are not granted."""
        check_observation(observation)
        generator = generator_or_fresh(generator)
        layer = first_layer(observation, generator)
        weight, bias = observation.sent[layer.weight], observation.sent[layer.bias]
        rows = self._separate(weight, bias, observation)
        return reconstruction(observation, rows, weight, bias, generator)

    def _separate(self, weight: Tensor, bias: Tensor, observation: Observation) -> Tensor:
        """One row for each example: the agreeing ones, then those that are explained worst."""
        if observation.batch_size == 1:
            return combine_rows(weight, bias)[None]
        rows = torch.nonzero(bias.abs() > 1e-6 * bias.abs().max()).flatten()
        rows = rows[bias[rows].abs().argsort(descending=True)]
        ratios = weight[rows] / bias[rows, None]
        recovered = self._agreeing(weight[rows], bias[rows], ratios)[: observation.batch_size]
        shaped = ratios.reshape(len(ratios), *observation.input_shape)
        inside = clamp(shaped, observation.low, observation.high)
        outside = (shaped - inside).abs() > 1e-3 * (1 + shaped.abs())
        order = outside.flatten(1).any(dim=1).long()  # those in range first
        while len(recovered) < observation.batch_size and len(rows) > 0:
            residual = _residual(weight[rows], bias[rows], recovered)
            worst = (residual * (order == order.min())).argmax() if recovered else order.argmin()
            recovered.append(ratios[worst])
            order[worst] = 2
        missing = observation.batch_size - len(recovered)
        return torch.stack([*recovered, *[torch.zeros_like(weight[0])] * missing])

    def _agreeing(self, weight: Tensor, bias: Tensor, ratios: Tensor) -> list[Tensor]:
        """One estimate for each set of at least two rows of the same ratio, largest set first."""
        sizes = ratios.norm(dim=1)
        most = torch.maximum(sizes[:, None], sizes)
        same = torch.cdist(ratios, ratios) <= 1e-3 * most
        left, found = torch.ones_like(bias, dtype=torch.bool), []
        for row in same.sum(dim=1).argsort(descending=True, stable=True).tolist():
            members = same[row] & left
            if bool(left[row]) and int(members.sum()) > 1:
                found.append(combine_rows(weight[members], bias[members]))
            left &= ~members
        return found


def first_layer(observation: Observation, generator: torch.Generator) -> Call:
    """The linear layer that reads the inputs, or an error."""
    layer = input_layer(observation, generator)
    if layer is None:
        raise WrongValue(
            "observation.model",
            "start with a trainable `nn.Linear` with a bias that reads the flattened inputs",
            f"{type(observation.model).__name__}, which does not",
            "Use `InvertingGradients` or `IDLG` for other models.",
        )
    return layer


def reconstruction(
    observation: Observation, rows: Tensor, weight: Tensor, bias: Tensor, generator: torch.Generator
) -> Reconstruction:
    """From the inputs in rows; its loss is the share of ‖[W, b]‖² that they do not span."""
    inputs = rows.reshape(observation.batch_size, *observation.input_shape)
    inputs = clamp(inputs, observation.low, observation.high)
    total = weight.square().sum() + bias.square().sum()
    loss = float(_residual(weight, bias, [*rows]).sum() / total.clamp_min(1e-30))
    return Reconstruction(inputs, labels_or_unknown(observation, generator), loss)


def combine_rows(weight: Tensor, bias: Tensor) -> Tensor:
    """x_j = Σ_i b_i W_ij / Σ_i b_i² over the rows i with b_i and W_ij not 0 (pruned)."""
    seen = (weight != 0) & (bias != 0)[:, None]
    power = (bias.square()[:, None] * seen).sum(dim=0)
    top = (bias[:, None] * weight * seen).sum(dim=0)
    return torch.where(power > 0, top / power.clamp_min(torch.finfo(bias.dtype).tiny), 0.0)


def _residual(weight: Tensor, bias: Tensor, recovered: list[Tensor]) -> Tensor:
    """The squared part of each row of [W, b] outside of the span of the rows [x̂_n, 1]."""
    rows = torch.cat([weight, bias[:, None]], dim=1)
    if not recovered:
        return rows.square().sum(dim=1)
    found = torch.stack(recovered)
    basis = torch.cat([found, torch.ones_like(found[:, :1])], dim=1)
    directions, sizes, _ = torch.linalg.svd(basis.T, full_matrices=False)
    kept: Tensor = directions[:, sizes > 1e-6 * sizes.max()]
    return (rows - rows @ kept @ kept.T).square().sum(dim=1)

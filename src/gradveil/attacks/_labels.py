"""Labels from the gradient of the last linear layer."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from gradveil._checks import WrongValue, check_kind
from gradveil._random import generator_or_fresh
from gradveil._tensors import Tensors
from gradveil.messages import trainable_parameters

from ._model_layers import Call, last_layer, linear_calls, random_inputs
from ._observation import Observation


class Reading(NamedTuple):
    """An estimate of Σ_n δ_n, and what single examples of each class would add to it."""

    values: Tensor
    trust: Tensor
    """The weight of each entry."""
    variance: float
    """Of the noise in each entry."""
    expected: Tensor
    """D, one row for each class."""
    error: float = 0.25
    """How well D is known, as a share of one example's."""


def fit_counts(readings: Sequence[Reading], total: int) -> Tensor:
    """The likeliest counts n ≥ 0 with Σ_c n_c = `total`, under the reading that fits best.

    Minimises Σ_c trust_c (reading - Σ_k n_k D_k)_c² / 2v + ½ C log v + Σ_c log n_c!, the likelihood
    of the reading and the multinomial prior of labels drawn evenly: where noise drowns the reading,
    the counts stay even instead of following it. v is the noise's variance and a part for what is
    not known of D. Greedy choice, then exchanges of single examples as long as they help.
    """
    fits = []
    for values, trust, variance, expected, error in readings:
        spread = variance + (error * expected.diagonal()).square().mean()
        precision = 0.5 * trust / spread
        counts = torch.zeros(len(values), dtype=torch.int64, device=values.device)
        residual = values.clone()
        for _ in range(total):
            best = int((_misfit(residual - expected, precision) + torch.log1p(counts)).argmin())
            counts[best] += 1
            residual = residual - expected[best]
        swaps = expected[:, None] - expected[None, :]  # [i, j]: one i fewer, one j more
        while True:
            now = _misfit(residual, precision)
            prior = torch.log1p(counts)[None, :] - torch.log(counts)[:, None]
            change = _misfit(residual + swaps, precision) - now + prior
            change[counts == 0] = torch.inf
            change.fill_diagonal_(torch.inf)
            best = int(change.argmin())
            if not float(change.flatten()[best]) < -1e-6 * float(now):
                break
            out, into = divmod(best, len(counts))
            counts[out] -= 1
            counts[into] += 1
            residual = residual + swaps[out, into]
        cost = now + torch.lgamma(counts + 1.0).sum()
        cost = cost + 0.5 * len(values) * torch.log(spread.clamp_min(1e-30))
        fits.append((float(cost), counts))
    return min(fits, key=lambda fit: fit[0])[1]


def if_trained(reading: Reading, unit: Tensor, total: int) -> list[Reading]:
    """Readings where D, evaluated at random inputs, may say nothing of real ones.

    A trained model gives an example of class c about the probabilities (1 - ε) e_c + ε q_c, with
    q_c even over the other classes, so D_c = ε (q_c - e_c) / B. ε is not known, and varies between
    examples with a variance of about ε (1 - ε) / 2: where a model is nearly always right its
    gradient says little of the labels, and the counts stay even.
    `unit` is (q_c - e_c) / B, one row for each class.
    """
    found = []
    for mistake in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02):
        scatter = total / len(unit) * (1 - mistake) / (2 * mistake)
        error = math.sqrt(reading.error**2 + scatter)
        found.append(reading._replace(expected=mistake * unit, error=error))
    return found


def _misfit(residuals: Tensor, precision: Tensor) -> Tensor:
    return (precision * residuals.square()).sum(dim=-1)


def recover_labels(observation: Observation, generator: torch.Generator | None = None) -> Tensor:
    """The labels of the batch, sorted by class: which image has which is not known.

    Labels or counts that the threat model grants are returned as they are (labels in the client's
    order). Otherwise they come from the gradient of the last linear layer, o = W h + b: with δ_n
    the gradient of the loss with respect to the logits of example n,

        ∂L/∂b = Σ_n δ_n,    ∂L/∂W = Σ_n δ_n h_nᵀ,    δ_n = (softmax(o_n) - e_{y_n}) / B

    for the mean cross-entropy. One example has one negative entry in δ, its label (iDLG). For a
    batch, ∂L/∂b = Σ_c n_c D_c with D_c = E[δ | label c], which the attacker evaluates: it has the
    model and the loss, and feeds it random inputs. The likeliest integer counts n ≥ 0 that add up
    to B are found by `fit_counts`. Without a bias, and beside it under noise, the weight's rows are
    projected on the mean features, which gives a second reading of the same sum.

    Exact for one example without noise. For batches it is right as far as D_c is: on models that
    are not yet trained. For trained ones a D_c of one parameter is fitted with the counts
    (`if_trained`), which finds more than a guess that spreads labels evenly, and not all. FedAvg's
    updates are read as the mean gradient of their steps.

    References: Zhao, Mopuri and Bilen, "iDLG: Improved Deep Leakage from Gradients", 2020; Wainakh
    et al., "User-Level Label Leakage from Gradients in Federated Learning", PoPETs 2022.

    >>> from dataclasses import replace
    >>> recover_labels(replace(seen, labels=None, label_counts=None))
    tensor([1])
    """
    check_kind(observation, "observation", Observation, "Make one with `observe`.")
    if observation.labels is not None:
        return observation.labels
    if observation.task != "classification":
        expected = "be of class labels where these are read off the last layer"
        advice = "Grant them (`ThreatModel(labels='known')`), or use `DLG`, which looks for them."
        raise WrongValue("observation", expected, f"targets that are {observation.task}", advice)
    counts = observation.label_counts
    if counts is None:
        counts = _estimated_counts(observation, generator_or_fresh(generator))
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def labels_or_unknown(observation: Observation, generator: torch.Generator) -> Tensor:
    """The labels; order within a batch is arbitrary, and -1 where the last layer tells none."""
    try:
        return recover_labels(observation, generator)
    except ValueError:
        return torch.full((observation.batch_size,), -1)


def _estimated_counts(observation: Observation, generator: torch.Generator) -> Tensor:
    """How often each class occurs in the batch, estimated from the last linear layer.

    Of FedAvg's update: at the parameters half way through the local steps, from the weight change
    over what the steps add up to.
    """
    probes = random_inputs(observation, 32, generator)
    parameters, gradient = trainable_parameters(observation.model), observation.sent
    if (local := observation.local) is not None:
        moved = [1 - local.momentum ** (k + 1) for k in range(local.steps)]
        if local.steps > 1:
            parameters = {name: value + gradient[name] / 2 for name, value in parameters.items()}
        step = -local.lr * sum(moved) / (1 - local.momentum)
        gradient = {name: value / step for name, value in gradient.items()}
    calls, outputs = linear_calls(observation, probes, parameters)
    layer = last_layer(calls, observation)
    classes, total = layer.layer.out_features, observation.batch_size
    outputs = outputs.reshape(-1, classes)
    reading = _reading(gradient, layer, _expected(observation, outputs))
    if total == 1:
        return torch.bincount(reading.values.argmin()[None], minlength=classes)
    if layer.bias in gradient:
        unit = _expected(observation, torch.zeros_like(outputs)) * classes / (classes - 1)
        return fit_counts([reading, *if_trained(reading, unit, total)], total)
    factors = torch.logspace(-0.5, 0.5, 21, dtype=torch.float64).tolist()  # of the features' size
    values, variance = reading.values, reading.variance
    scaled = [reading._replace(values=values / f, variance=variance / f**2) for f in factors]
    return fit_counts(scaled, total)


def _reading(gradient: Tensors, layer: Call, expected: Tensor) -> Reading:
    """From the bias, and from the weight projected on the mean features.

    The logits' gradients add up to 0 over classes, so what the columns of the sent gradient add up
    to is noise: its variance weighs the bias (exact but noisy) against the projected weight (wrong
    by the scatter of the features, but averaged over them). An entry of the bias that was pruned
    is most likely small, and counts as a 0 of little weight.
    """
    features = layer.inputs.reshape(-1, layer.layer.in_features).mean(dim=0)
    weight, bias = gradient[layer.weight], gradient.get(layer.bias)
    power = features.square().sum().clamp_min(1e-30)
    projected = (weight * features).sum(dim=1) / power
    noise = float(weight.sum(dim=0).square().mean()) / len(weight)
    averaged, hardly = noise / float(power), 0.3  # pruned: it says only that it was not sent
    if bias is None:
        trust = torch.where(weight.any(dim=1), 1.0, hardly).to(projected)
        return Reading(projected, trust, averaged, expected)
    known = bias != 0
    reach = projected[known].square().sum().clamp_min(1e-30)
    projected = projected * ((projected[known] * bias[known]).sum() / reach).clamp(1 / 3, 3)
    scatter = float((projected - bias)[known].square().mean()) if bool(known.any()) else 0.0
    spread = max(scatter - noise, averaged)
    share = noise / (noise + spread + 1e-30)
    mixed = torch.where(known, (1 - share) * bias + share * projected, 0.0)
    variance = noise * spread / (noise + spread + 1e-30)
    return Reading(mixed, torch.where(known, 1.0, hardly).to(mixed), variance, expected)


def _expected(observation: Observation, outputs: Tensor) -> Tensor:
    """D_c, the mean gradient with respect to the logits of one example with label c."""

    def deltas(logits: Tensor, label: int) -> Tensor:
        targets = torch.full((len(logits),), label, device=logits.device)
        delta: Tensor = grad(lambda o: observation.loss_fn(o, targets))(logits)
        return delta

    means = torch.stack([deltas(outputs, label).mean(dim=0) for label in range(outputs.shape[1])])
    alone = deltas(outputs[:1], 0).abs().sum()
    together = deltas(outputs[:1].expand(len(outputs), -1), 0)[0].abs().sum()
    if float(alone) < 2 * float(together):  # a sum over examples, not their mean
        size = (observation.local.batch_size if observation.local else None) or math.inf
        return means * min(size / observation.batch_size, 1.0)
    return means * len(outputs) / observation.batch_size

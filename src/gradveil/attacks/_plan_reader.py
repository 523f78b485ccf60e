"""The attack that reads the noise levels: a plan made from the private batch is evidence of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch
from torch import Tensor
from torch.func import jvp, vmap

from gradveil._checks import WrongValue
from gradveil._random import seed_from
from gradveil._tensors import flatten
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments, draw_probes

from ._attack import Reconstruction
from ._descent import Cost, Descent, Point, Watch, sent_row
from ._matching import estimator_for
from ._model_layers import features_of, linear_calls, random_inputs
from ._observation import Observation, check_known
from ._priors import TotalVariation
from ._targets import LabelledSearch, Run


@dataclass(frozen=True)
class Columns:
    """y_ij² over their median, c_i of the rows, and mean and standard deviation of each u_j."""

    squares: Tensor
    rows: Tensor
    mean: Tensor
    spread: Tensor


def read_columns(sent: Tensor) -> Columns:
    """Fit y_ij ~ N(0, λ √(1/u_j² + c_i²)) to what was sent of a matrix, all columns and rows.

    For one example the matrix's gradient is g_ij = δ_i a_j, and its squared sensitivity is close to
    δ_i² ‖∇a_j‖² + a_j² ‖∇δ_i‖². So optimal noise has the variance λ s_ij / |g_ij| with
    u_j = |a_j| / ‖∇a_j‖ and c_i = ‖∇δ_i‖ / |δ_i|: the mean of y² over the rows tells how large each
    entry of the layer's input is, however large the noise. The rows c_i are fitted by maximum
    likelihood, the columns u_j by their posterior mean under their distribution, which is fitted,
    too; λ is 1 here. Rows of zeros (dead units whose noise is 0) are left out.
    """
    squares = sent.detach().square()
    squares = squares[squares.any(1)]
    squares = squares / squares.median().clamp(min=torch.finfo(squares.dtype).tiny)
    values = torch.logspace(-2.5, 2.5, 101).to(squares)
    choices = torch.cat([values.new_zeros(1), torch.logspace(-2, 2, 61).to(squares)])
    rows = squares.new_zeros(len(squares))
    weights = torch.full_like(values, 1 / len(values))
    flat = 0.05  # the share of the first distribution that is kept: nothing becomes impossible
    for _ in range(6):
        shares = (weights.log() - _costs(squares, values, rows)).softmax(1)
        weights = (1 - flat) * shares.mean(0) + flat / len(values)
        mean = shares @ values
        rows = choices[_costs(squares.T, 1 / choices, 1 / mean).argmin(1)]
    spread = (shares @ values.square() - mean.square()).clamp(min=0).sqrt()
    return Columns(squares, rows, mean, spread)


def _costs(squares: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    """½ Σ_i (y_ij² / v_i + log v_i) with v_i = √(1/u² + c_i²), for each column j and value u."""
    levels = (values.pow(-2)[None] + rows.square()[:, None]).sqrt()
    return 0.5 * (squares.T @ levels.reciprocal() + levels.log().sum(0))


def read_pixels(columns: Columns, low: Tensor, high: Tensor) -> Tensor:
    """The likeliest value of every pixel, from u_j = |x_j| up to one factor.

    The sign and a factor are open. Both are settled by what is known of images: their range, and
    that many of their pixels lie at its ends: a quarter at each is expected. The factor is the
    likeliest one; then the shares of all values are fitted to the image itself (expectation
    maximisation), with a tenth of what was expected kept.
    """
    places = torch.linspace(0, 1, 65).to(low)
    shares = torch.full_like(places, 0.5 / (len(places) - 2))
    shares[0] = shares[-1] = 0.25
    values = low[:, None] + (high - low)[:, None] * places
    logs = torch.linspace(-9, 9, 181).to(values)
    table = _costs(columns.squares, logs.exp(), columns.rows)
    # of u over |x|: such that the largest pixel is a typical column, up to a hundred times it
    largest = columns.mean.median() / values.abs().max()
    factors = largest * torch.logspace(-0.5, 2, 121).to(values)
    size = values.abs().clamp(min=1e-3 * float(values.abs().max()))

    def costs_of(factor: Tensor) -> Tensor:
        """-log p(y_j | x_j = value) for each pixel and each of its values, u = factor · |x|."""
        wanted = (size * factor).log()
        place = ((wanted - logs[0]) / (logs[1] - logs[0])).clamp(0, len(logs) - 1.001)
        below = place.floor().long()
        share = place - below
        return table.gather(1, below) * (1 - share) + table.gather(1, below + 1) * share

    tables, prior = map(costs_of, factors), shares.log()
    costs = max(tables, key=lambda costs: float((prior - costs).logsumexp(1).sum()))
    expected = shares
    for _ in range(40):
        posterior = (shares.log() - costs).softmax(1)
        shares = 0.9 * posterior.mean(0) + 0.1 * expected
    return values.gather(1, posterior.argmax(1, keepdim=True))[:, 0]


def feature_cost(
    features: Callable[[Tensor], Tensor], columns: Columns, positive: float, seed: int, rough: bool
) -> Cost:
    """Σ_j -log p(û_j | a_j(x) / ‖∇a_j(x)‖) + strength · TV(x), with the sign of each a_j unknown.

    What was read of a layer's input is û_j = |a_j| / ‖∇a_j‖, up to one factor for all, which is
    fitted at every candidate. Each a_j is û_j with a positive (expected of a share `positive`) or
    a negative sign, or û_j is wrong: a mixture of three. The slopes are constants between their
    renewals, every ten steps, along directions of this seed. A rough search has half the prior's
    strength, and a temperature that falls to 1 in three quarters of the steps: at first signs are
    not yet decided.
    """
    energy, heat = (TotalVariation(3.0), 10.0) if rough else (TotalVariation(6.0), 1.0)
    read, calls, held = columns.mean, count(), list[Tensor]()
    blur = (0.05 * read.mean()) ** 2 + (0.1 * read).square()
    certain = 1 / (columns.spread.square() + blur)

    def slopes_at(inputs: Tensor) -> Tensor:
        """‖∇a_j‖ from random directions, always the same ones."""
        directions = draw_probes(inputs, 16, torch.Generator().manual_seed(seed))
        moved: Tensor = vmap(lambda v: jvp(features, (inputs,), (v,))[1])(directions)
        slopes = moved[:, 0].square().mean(0).sqrt()
        return slopes.clamp(min=1e-6 * float(slopes.mean()) + torch.finfo(slopes.dtype).tiny)

    def cost(inputs: Tensor, progress: float) -> Tensor:
        if next(calls) % 10 == 0:
            held[:] = [slopes_at(inputs.detach())]
        found = features(inputs)[0] / held[0]
        factor = (certain * found.detach().abs() * read).sum() / (certain * read.square()).sum()
        found = found / factor.clamp(min=torch.finfo(factor.dtype).tiny)
        weight = 0.5 * certain / heat ** (1 - min(1.0, progress / 0.75))
        cases = (
            math.log(positive) - weight * (found - read).square(),
            math.log(1 - positive) - weight * (found + read).square(),
            torch.full_like(found, math.log(0.05) - 4),  # read wrong, at any value
        )
        return energy(inputs) - torch.stack(cases).logsumexp(0).sum()

    return cost


class PlanLikelihood:
    """-log p(y | x) = ½ Σ_i ((y_i - μ_i(x))² / Σ_i(x) + log Σ_i(x)), up to a constant.

    Σ(x) is the defense's own plan from the moments of x, with random probes that stay the same, so
    that it is one smooth function of x. Without the log-determinant large noise would explain
    everything. Of a mechanism that the attacker knows it is a constant.
    """

    def __init__(self, observation: Observation, labels: Tensor, seed: int = 0) -> None:
        self.observation, self.seed = observation, seed
        self.message, self.sent = observation.message(labels), sent_row(observation)

    def __call__(self, inputs: Tensor) -> Tensor:
        means, variances = self.levels(inputs)
        errors = (self.sent - means).square() / variances
        return 0.5 * (errors + variances.log()).sum(dtype=torch.float64)

    def levels(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """μ(x) and Σ(x) in one row each, differentiable."""
        mechanism, defense = self.observation.mechanism, self.observation.defense
        if mechanism is not None:
            values = self.message(inputs)
        else:
            assert defense is not None
            probes = torch.Generator().manual_seed(self.seed)
            measured = estimator_for(self.message, inputs)(self.message, inputs, probes)
            values, squares = measured.values, measured.squared_sensitivities
            powers = {name: value.square() for name, value in values.items()}
            mechanism = defense.plan(Moments(powers, squares, inputs.numel()))
        if not isinstance(mechanism, Mechanism):
            found = f"one that plans a {type(mechanism).__name__}"
            expected = "have a defense that adds noise"
            raise WrongValue("observation", expected, found, "Use `Adaptive`.")
        variances = flatten(mechanism.variance(values))
        least = 1e-4 * float(variances.detach().mean())  # no level divides by 0
        tiny = torch.finfo(variances.dtype).tiny
        return flatten(mechanism.mean(values)), variances.clamp(min=max(least, tiny))


def plan_can_be_read(observation: Observation) -> bool:
    """Whether the noise levels were planned from the private batch, entry by entry, and are hidden.

    Only then the levels of a message say more of the batch than the message's mean does.
    """
    defense = observation.defense
    if defense is None or observation.mechanism is not None or not defense.about.private:
        return False
    about, per_entry = defense.about, defense.granularity == "parameter"
    return about.needs.sensitivities and about.family == "noise" and per_entry


def read_image(run: Run, steps: int) -> Tensor | None:
    """The image that the noise levels of a layer show, of a batch of one; `None` if they cannot.

    The layer is the one that reads the image, else the largest one that meets each example once.
    Pixels themselves are read in closed form; that needs their range. A later layer's input is
    inverted: `steps` annealed steps, and a third as many with a stronger prior.
    """
    seen, low, high = run.observation, run.observation.low, run.observation.high
    if seen.batch_size > 1 or not plan_can_be_read(seen):
        return None
    probes, found = random_inputs(seen, 4, run.generator), []
    for call in linear_calls(seen, probes)[0]:
        sent = seen.sent.get(call.weight)
        once = call.inputs.dim() == 2 and len(call.inputs) == len(probes)
        if sent is not None and once and len(sent) >= 8:  # a shorter column tells too little
            found.append((torch.equal(call.inputs, probes.flatten(1)), call))
    if not found:
        return None
    is_first, call = max(found, key=lambda one: (one[0], one[1].layer.weight.numel()))
    columns = read_columns(seen.sent[call.weight])
    image = columns.mean.new_zeros(1, *seen.input_shape)
    if is_first:
        if low is None or high is None:
            return None
        ends = (bound.to(image).expand(seen.input_shape).flatten() for bound in (low, high))
        return read_pixels(columns, *ends).view_as(image)
    if low is not None:
        image = image + 0.97 * low.to(image) + (0.0 if high is None else 0.03 * high.to(image))
    features, seed = features_of(call.name, seen), seed_from(run.generator)
    positive = min(0.75, max(0.25, float((call.inputs > 0).double().mean())))
    for rough, some, rate, settled in ((True, steps, 0.3, 0.75), (False, steps / 3, 0.1, 0.0)):
        cost, some = feature_cost(features, columns, positive, seed, rough), math.ceil(some)
        descent = Descent(max(1, some), rate, "adam", "cosine", run.watch.left(), settled)
        image = replace(run, progress=None).minimise(cost, image[None], descent).inputs[0]
    return image


@dataclass(frozen=True)
class PlanReader(LabelledSearch):
    """Minimises ½ Σ_i ((y_i - g_i(x))² / Σ_i(x) + log Σ_i(x)) + E(x), Σ(x) the plan at x.

    Optimal noise that is planned from the private batch has the variance λ s_i(x) / |g_i(x)|: its
    levels can be read however large the noise is. For one example the columns of a linear layer
    show the layer's input, `read_columns`: pixels where the layer reads the image, else features,
    which are inverted. From there and from noise it descends on the cost above, with total
    variation as E, and the most likely end wins. Where the plan is public, or the same for all
    entries, what is left is the likelihood of the message.

    >>> PlanReader(steps=100).polish
    40
    """

    knows_defense = True

    steps: int = 600
    """For inverting features."""
    polish: int = 40
    """Steps on the likelihood with the levels as a function of the candidate."""

    def search(self, run: Run) -> Reconstruction:
        check_known(run.observation)
        drawn, image = run.clamp(run.noise(1)[0]), read_image(run, self.steps)
        return self._best(run, [drawn] if image is None else [image, drawn])

    def improve(self, run: Run, result: Reconstruction) -> Reconstruction:
        """The same from another attack's result beside what is read, if anything is."""
        run = replace(run, watch=Watch(self.time_budget), progress=self.progress)
        image = read_image(run, self.steps)
        return result if image is None else self._best(run, [image, result.inputs])

    def _best(self, run: Run, starts: Sequence[Tensor]) -> Reconstruction:
        seed, energy = seed_from(run.generator) % 2**31, TotalVariation(6.0)
        likelihood = PlanLikelihood(run.observation, run.labels, seed)

        def cost(inputs: Tensor, progress: float) -> Tensor:
            return likelihood(inputs) + energy(inputs)

        def descend(start: Tensor) -> Point:
            descent = Descent(self.polish, 0.02, "adam", "cosine", run.watch.left())
            return run.minimise(cost, start[None], descent).best

        end = min(map(descend, starts), key=lambda end: end.cost)
        return Reconstruction(end.inputs, run.labels, end.cost, end.status)

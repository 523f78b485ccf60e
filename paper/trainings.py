"""What cells compute by training a model."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from benchmarks.private import hooks
from gradveil._checks import NonFiniteError
from gradveil._imports import require
from gradveil._random import named_stream
from gradveil._runner import Settings
from gradveil._tensors import Tensors, total
from gradveil.catalog import build_defense
from gradveil.data import Dataset
from gradveil.defenses import (
    Defended,
    Defense,
    OptimalNoise,
    PrivateNoise,
    capped,
    least_square,
    raise_to_least,
    sensitivity_shape,
)
from gradveil.federated import FederatedRun, Split, TrainingConfig, build_run, evaluate
from gradveil.mechanisms import Mechanism, constant_like
from gradveil.messages import GradientMessage, Message
from gradveil.privacy import PrivacyAccount, poisson_sample, solve_noise_multiplier
from gradveil.sensitivity import Moments, measure
from gradveil.shapes import rms_shape
from gradveil.theory import expected_decrease, fisher_trace, utility

from .cells import batch_moments, dataset, from_examples, model

_CONFIG = ("model", "defense", "clients", "batch_size", "rounds", "optimizer", "lr", "seed")
_LOCAL = ("local_steps", "local_lr", "local_batch_size")


def config_of(settings: Settings) -> TrainingConfig:
    """The training configuration; the data stay a name."""
    given = {name: settings[name] for name in (*_CONFIG, *_LOCAL) if name in settings}
    return TrainingConfig(data=settings["data"], evaluate_every=settings["rounds"], **given)


def federation(settings: Settings) -> FederatedRun:
    """Clients that share `examples` examples from `start` on, and a server.

    With `held_out`, so many examples from `held_out_start` on are for evaluation; without it the
    training examples themselves are. With `public`, {start, examples, refresh}, plans come from so
    many other examples, every `refresh` rounds, and are the same for all clients.
    """
    config, data = config_of(settings), dataset(settings["data"])
    inputs, targets = data.batch(settings.get("start", 0), settings["examples"])
    held_out = inputs, targets
    if settings.get("held_out"):
        held_out = data.batch(settings["held_out_start"], settings["held_out"])
    split = Split(inputs, targets, held_out, data.num_classes)
    run = build_run(config, split)
    if settings.get("public"):
        shared = from_examples(
            build_defense(config.defense), data, settings["public"], config.clients
        )
        for client in run.clients.values():
            client.defense = shared
    return run


class Recording(Defense):
    """A wrapper of a defense that records the mean standard deviation of each tensor."""

    def __init__(self, defense: Defense) -> None:
        self.defense = defense
        self.levels: list[dict[str, float]] = []

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """What the other one responds."""
        defended = self.defense.respond(message, inputs, generator)
        mechanism = defended.mechanism
        if isinstance(mechanism, Mechanism) and isinstance(mechanism.std, Mapping):
            self.levels.append({name: float(std.mean()) for name, std in mechanism.std.items()})
        return defended


def mean_levels(recordings: Sequence[Recording]) -> dict[str, list[float]]:
    """The mean over clients for each tensor and round; empty where no noise was planned."""
    rounds = min(len(recording.levels) for recording in recordings)
    names = recordings[0].levels[0] if rounds else {}
    means = {
        name: [sum(r.levels[t][name] for r in recordings) / len(recordings) for t in range(rounds)]
        for name in names
    }
    return means if any(any(levels) for levels in means.values()) else {}


def training(settings: Settings) -> dict[str, Any]:
    """Train and keep the clients' mean loss before each step, and the end on held-out examples.

    `levels` holds the standard deviation of the noise, averaged over each tensor's entries and
    over clients, in every round. Settings: `data`, `start`, `examples`, `model`, `defense`,
    `clients`, `batch_size`, `rounds`, `optimizer`, `lr`, `seed`; optional `held_out`,
    `held_out_start`, `public` (see `federation`) and FedAvg's `local_steps`, `local_lr`,
    `local_batch_size`.
    """
    run, recordings = federation(settings), []
    for client in run.clients.values():
        client.defense = Recording(client.defense)
        recordings.append(client.defense)
    history = run.run(settings["rounds"])
    last = history.rounds[-1]
    return {
        "losses": [row.loss for row in history.rounds],
        "levels": mean_levels(recordings),
        "held_out_loss": last.held_out_loss,
        "accuracy": last.accuracy,
        "bytes_sent": sum(row.bytes_sent for row in history.rounds),
        "skipped": history.skipped,
    }


def short_training(settings: Settings) -> dict[str, Any]:
    """The loss on the batch before the first step and after the last.

    Each of the clients has a fixed share of the batch, which it defends anew in every step.
    Settings: those of "training".
    """
    run = federation(settings)
    assert run.held_out is not None
    before = evaluate(run.server.model, config_of(settings).loss_fn, *run.held_out).loss
    last = run.run(settings["rounds"]).rounds[-1]
    return {"before": before, "after": last.held_out_loss, "accuracy": last.accuracy}


@dataclass(frozen=True)
class Planner:
    """Noise of one shape and amount, and the batches by which it is judged."""

    levels: Tensors | None
    """r, the variances up to a constant; `None`: each batch has its own."""
    amount: float
    judges: list[Moments]

    def mechanism(self, moments: Moments) -> Mechanism:
        """The noise on a batch, which only a private plan looks at."""
        levels = shape_of("Theorem 2", moments) if self.levels is None else self.levels
        std = {name: (self.amount * r).sqrt() for name, r in levels.items()}
        if any(bool(s.isnan().any()) for s in std.values()):
            raise NonFiniteError("The noise", "have finite levels", "that training diverged")
        return Mechanism(std)

    def utilities(self, settings: Settings) -> dict[str, float]:
        """Means over the judges; the more, the worse for training."""
        rows = [_costs(judge, self.mechanism(judge), settings) for judge in self.judges]
        return {name: fmean(row[name] for row in rows) for name in rows[0]}


def plan(settings: Settings, data: Dataset, net: nn.Module) -> Planner:
    """A planner at the model's weights, with the trace of isotropic noise of `scale`."""
    moments = batch_moments(net, data, settings["public"], examples=True)
    half = len(moments) // 2
    planned, judges = Moments.average(moments[:half]), moments[half:]
    wanted = fmean(fisher_trace(judge, Mechanism(settings["scale"])) for judge in judges)
    private = settings["shape"] == "private"  # not a shape: every batch has its own
    levels = None if private else shape_of(settings["shape"], planned, wanted)
    unit = Planner(levels, 1.0, judges)
    own = fmean(fisher_trace(judge, unit.mechanism(judge)) for judge in judges)
    return replace(unit, amount=own / wanted)


def shape_of(name: str, moments: Moments, trace: float = 1.0) -> Tensors:
    """Variances up to a constant, with the floors and caps of `OptimalNoise`.

    The trace of their information matters for Adam's optimum alone, whose shape depends on it.
    """
    if name == "isotropic":
        return constant_like(1.0, moments.squared_values)
    if name == "total power":  # s: at a given Σ_i Σ_ii nothing reveals less
        moments = replace(moments, squared_values=constant_like(1.0, moments.squared_values))
    if name == "curvature":
        moments = replace(moments, squared_values=moments.known_squared_example_values)
    if name == "adam":
        return adam_variances(moments, trace)
    defense = OptimalNoise(1.0, granularity="layer" if name == "layers" else "parameter")
    std = defense.plan(moments).std
    assert isinstance(std, dict)
    power = 4 if name == "steep" else 2  # (s/|g|)², or s/|g|
    return {n: s**power for n, s in std.items()}


def adam_variances(moments: Moments, trace: float) -> Tensors:
    """Variances v with the largest Σ g_i²/√(g_i² + v_i) at the trace Σ s_i²/v_i, up to a constant.

    What Adam gains in a step is the first sum: it divides by the root of what it has seen on the
    average, noise included. Its KKT condition g_i²/(g_i² + v_i)^(3/2) ∝ s_i²/v_i² is, with
    v_i = g_i² x_i, one equation for each entry,

        x_i² / (1 + x_i)^(3/2) = μ s_i² / |g_i|³,

    and one multiplier μ for all, which sets the amount. So the shape depends on the amount: it is
    s √|g| where noise is small, and (s/|g|)⁴ where it is large. Caps and floors are those of
    `OptimalNoise`; μ is looked for on about 2¹³ entries, evenly spread.
    """
    squares, slopes = moments.squared_values, moments.known_squared_sensitivities
    ratios = capped(sensitivity_shape(moments, "parameter", 1e-4).levels(moments.like), 100.0)
    least = {n: g2.clamp(min=least_square(g2, 1e-4)) for n, g2 in squares.items()}
    wanted = total(torch.where(r > 0, slopes[n] / r, 0.0) for n, r in ratios.items())
    allowed = trace * float(total(least[n] * r for n, r in ratios.items()) / wanted)
    variances = optimum(ratios, least, allowed)
    return raise_to_least({n: v * (squares[n] > 0) for n, v in variances.items()}, 0.25)


def optimum(ratios: Tensors, squares: Tensors, allowed: float) -> Tensors:
    """The variances at the trace `allowed` of s_i = r_i |g_i|; 0 where r_i is."""
    size = sum(ratio.numel() for ratio in ratios.values())
    spread = max(1, size // 2**13)
    ratio, square = (
        torch.cat([own[name].detach().reshape(-1)[::spread].double() for name in ratios])
        for own in (ratios, squares)
    )
    seen = ratio > 0
    ratio, square = ratio[seen], square[seen]
    middle = -float(_log_k(ratio, square).median())
    low, high = middle - 150.0, middle + 150.0
    for _ in range(60):
        multiplier = (low + high) / 2
        revealed = float((ratio.square() * square / _levels(ratio, square, multiplier)).sum())
        large = revealed * size / len(seen) < allowed
        low, high = (low, multiplier) if large else (multiplier, high)
    found = {}
    for name, own in ratios.items():  # in their precision, as far as that holds the number
        limits = torch.finfo(own.dtype)
        levels = _levels(own.double(), squares[name].double(), low)
        found[name] = (levels.clamp(limits.tiny, limits.max) * own.sign()).to(own.dtype)
    return found


def _levels(ratio: Tensor, square: Tensor, multiplier: float) -> Tensor:
    """g² x, with Newton's method for u = log x; from the left it never overshoots."""
    goal = multiplier + _log_k(ratio, square)
    u = torch.where(goal < 0, goal / 2, 2 * goal)
    for _ in range(10):
        error = goal - 2 * u + 1.5 * softplus(u)
        u = u + error / (2 - 1.5 * torch.sigmoid(u))
    return square * u.exp()


def _log_k(ratio: Tensor, square: Tensor) -> Tensor:
    """log(s²/|g|³) = 2 log(s/|g|) - log|g|."""
    return 2 * ratio.clamp(min=1e-300).log() - 0.5 * square.log()


def _costs(moments: Moments, mechanism: Mechanism, settings: Settings) -> dict[str, float]:
    values = {name: square.sqrt() for name, square in moments.squared_values.items()}
    variances = mechanism.variance(values)
    curvatures = moments.known_squared_example_values
    adam = expected_decrease(moments, mechanism, settings["lr"], "adam")
    return {
        "U2": -utility(values, mechanism).second,
        "total power": float(total(variances.values())),
        "curvature": float(total(h * variances[n] for n, h in curvatures.items())),
        "Adam's step": -adam,
    }


def training_prediction(settings: Settings) -> dict[str, Any]:
    """Train with noise of one shape, whose trace bound is that of isotropic noise of `scale`.

    The shape is planned from public batches every `refresh` steps, or, for "private", from each
    batch itself. Half of the public batches plan; the others set the amount and give the utilities,
    which are those of the first plan. A loss is None where training diverged. Settings: `data`,
    `model`, `shape`, `scale`, `optimizer`, `lr`, `batch_size`, `examples` (to train on, from 0),
    `steps` (after which the loss on the held-out examples is taken), `refresh`, `public`,
    `held_out_start`, `held_out`, `seed`.
    """
    data = dataset(settings["data"])
    net = deepcopy(model({**settings, "model_seed": settings["seed"]}))
    planner = plan(settings, data, net)
    found = planner.utilities(settings)
    losses: list[float | None] = []
    with suppress(NonFiniteError):  # it diverged
        losses.extend(_losses(settings, data, net, planner))
    missing = len(settings["steps"]) - len(losses)
    return {"losses": losses + [None] * missing, "costs": found}


def _losses(settings: Settings, data: Dataset, net: nn.Module, planner: Planner) -> Iterator[float]:
    """The loss on the held-out examples after each of `steps`."""
    size, lr, seed = (settings[name] for name in ("batch_size", "lr", "seed"))
    noise = named_stream("studies", seed, "noise", 0)
    momentum = 0.9 if settings["optimizer"] == "momentum" else 0.0
    adam, weights = settings["optimizer"] == "adam", net.parameters()
    optimizer = torch.optim.Adam(weights, lr) if adam else torch.optim.SGD(weights, lr, momentum)
    held_out = data.batch(settings["held_out_start"], settings["held_out"])
    for step in range(max(settings["steps"])):
        if step and step % settings["refresh"] == 0:
            planner = plan(settings, data, net)
        start = (step * size + 101 * seed) % (settings["examples"] - size)
        inputs, targets = data.batch(start, size)
        message, seen = GradientMessage(net, cross_entropy, targets), planner.judges[0]
        if planner.levels is None:  # the plan is made from the batch itself
            seen = measure(message, inputs, generator=noise)
        sent = planner.mechanism(seen).apply(message.values(inputs), noise)
        for name, parameter in net.named_parameters():
            parameter.grad = sent[name]
        optimizer.step()
        if step + 1 in settings["steps"]:
            yield evaluate(net, cross_entropy, *held_out).loss


Gradient = Callable[[int, Tensor, Tensor], None]
"""Put the gradient of these inputs and targets into `.grad`; the step's number comes first."""


Way = Callable[[nn.Module, Settings, float, torch.Generator], Gradient]
"""To the gradient of a model, with an amount of noise, and where this is from."""


def plain(net: nn.Module, settings: Settings, amount: float, noise: torch.Generator) -> Gradient:
    """Neither clipped nor noised."""

    def gradient(step: int, inputs: Tensor, targets: Tensor) -> None:
        net.zero_grad(set_to_none=True)
        cross_entropy(net(inputs), targets).backward()  # type: ignore[no-untyped-call]

    return gradient


def private_noise(
    net: nn.Module, settings: Settings, amount: float, noise: torch.Generator
) -> Gradient:
    """`PrivateNoise`: isotropic (DP-SGD), or in a shape from public examples at the weights."""
    public, defense = settings["public"], None
    examples, labels = dataset(settings["data"]).batch(public["start"], public["count"])
    message = GradientMessage(net, cross_entropy, labels)

    def gradient(step: int, inputs: Tensor, targets: Tensor) -> None:
        nonlocal defense
        if defense is None or step % public["refresh"] == 0:
            shape = rms_shape(message, examples) if settings["way"] == "shaped" else None
            size = settings["batch_size"]
            defense = PrivateNoise(amount, settings["clip"], shape, batch_size=size)
        net.zero_grad(set_to_none=True)
        defense.backward(net, cross_entropy, inputs, targets, noise)

    return gradient


def opacus(net: nn.Module, settings: Settings, amount: float, noise: torch.Generator) -> Gradient:
    """Opacus with hooks; it adds the noise of its own to the same samples."""
    require("the comparison", "opacus", "opacus")
    given = {"noise_multiplier": amount, "expected_batch_size": settings["batch_size"]}
    hooked, private = hooks(net, settings["clip"], generator=noise, **given)
    pairs = [*zip(net.parameters(), hooked.parameters(), strict=True)]

    def gradient(step: int, inputs: Tensor, targets: Tensor) -> None:
        with torch.no_grad():
            for own, theirs in pairs:
                theirs.copy_(own)
        private(inputs, targets)
        for own, theirs in pairs:
            own.grad = theirs.grad

    return gradient


_SHAPED = dict.fromkeys(("isotropic", "shaped"), private_noise)
WAYS: dict[str, Way] = {"plain": plain, "opacus": opacus, **_SHAPED}


def private_training(settings: Settings) -> dict[str, Any]:
    """Train with Adam on Poisson samples, each step a private gradient, and evaluate.

    Runs of one seed share the weights at the start and the samples, whatever the way to a private
    gradient. A seeded run protects nobody: this is a simulation, and its result says so. The rate
    is made from the number of examples: ε is about one replaced by an empty one. Settings: `data`,
    `model`, `way` ("plain", "isotropic", "shaped" or "opacus"), `epsilon` of the whole training
    (None for "plain"), `delta`, `clip`, `batch_size` (expected), `steps`, `examples` (to train on,
    from 0), `lr`, `public` (`start` and `count` of the examples that the shape is made from, every
    `refresh` steps), `held_out_start`, `held_out`, `seed`.
    """
    data, seed, steps = dataset(settings["data"]), settings["seed"], settings["steps"]
    inputs, targets = data.batch(0, settings["examples"])
    rate = settings["batch_size"] / settings["examples"]
    multiplier = _multiplier(settings["epsilon"], settings["delta"], rate, steps)
    net = deepcopy(model({**settings, "model_seed": seed}))
    noise = named_stream("studies", seed, "noise", 0)
    gradient = WAYS[settings["way"]](net, settings, multiplier, noise)
    optimizer = torch.optim.Adam(net.parameters(), lr=settings["lr"])
    sampling = named_stream("studies", seed, "sampling", 0)
    for step in range(steps):
        chosen = poisson_sample(len(inputs), rate, sampling)
        gradient(step, inputs[chosen], targets[chosen])
        optimizer.step()
    held_out = data.batch(settings["held_out_start"], settings["held_out"])
    found = evaluate(net, cross_entropy, *held_out)
    own = {"loss": found.loss, "accuracy": found.accuracy, "noise_multiplier": multiplier or None}
    return {**own, **_spent(settings, rate, multiplier)}


@lru_cache(maxsize=16)
def _multiplier(epsilon: float | None, delta: float, rate: float, steps: int) -> float:
    """The noise that spends ε in all steps together; 0 where there is no ε."""
    return 0.0 if epsilon is None else solve_noise_multiplier(epsilon, delta, rate, steps)


def _spent(settings: Settings, rate: float, multiplier: float) -> dict[str, Any]:
    """ε by our accountant, and for Opacus by its own, of a training whose noise has no seed."""
    if not multiplier:
        return {"epsilon": None, "epsilon_opacus": None}
    account = PrivacyAccount(multiplier, rate, settings["delta"], neighbours="zero-out")
    account.step(settings["steps"])
    theirs = None
    if settings["way"] == "opacus":
        from opacus.accountants import PRVAccountant

        accountant = PRVAccountant()
        accountant.history = [(multiplier, rate, settings["steps"])]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = float(accountant.get_epsilon(delta=settings["delta"]))
    return {"epsilon": account.epsilon(), "epsilon_opacus": theirs, "simulation": True}

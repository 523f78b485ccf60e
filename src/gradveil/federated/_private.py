"""The (ε, δ) of a run, and the sentence that states it."""

import math
from dataclasses import replace

from torch import Tensor

from gradveil._checks import WrongValue
from gradveil._imports import AllowImports
from gradveil.catalog import Spec, build_defense
from gradveil.defenses import PrivateNoise
from gradveil.privacy import PrivacyAccount, epsilon_on_grid, solve_noise_multiplier

from ._config import TrainingConfig
from ._history import TrainingHistory
from ._partition import partition

MULTIPLIER = "noise_multiplier"


def private_defense(
    config: TrainingConfig, *, allow_imports: AllowImports = False
) -> PrivateNoise | None:
    """The defense of a run, if it has (ε, δ); `None` for all others.

    With a target its noise multiplier may be left out: 1 stands in its place here.

    Raises:
        ValueError: If there is a target, and the defense has no (ε, δ).
    """
    spec = Spec.parse(config.defense, "defense")
    if config.target_epsilon is not None and MULTIPLIER in spec.missing:
        spec = spec.with_(**{MULTIPLIER: 1.0})
    defense = build_defense(spec, allow_imports=allow_imports)
    if isinstance(defense, PrivateNoise):
        return defense
    if config.target_epsilon is not None:
        asked = f"`target_epsilon = {config.target_epsilon}` with `{config.defense}`"
        found = f"{asked}, which has no such guarantee at any amount"
        expected, advice = (
            "be left out for a defense without (ε, δ)",
            "Use private-noise(clip=1.0).",
        )
        raise WrongValue("target_epsilon", expected, found, advice)
    return None


def accounted(
    config: TrainingConfig, targets: Tensor, *, allow_imports: AllowImports = False
) -> tuple[TrainingConfig, PrivacyAccount | None]:
    """The configuration with all of a private defense in it, and its account.

    Without a defense that has (ε, δ), the configuration as it is, and no account. Local steps make
    an update that is clipped as a whole (unit="client"). A multiplier that was left out is the
    smallest with ε(δ) ≤ `target_epsilon` after all rounds. One that was given stays: the run then
    ends before the round that would exceed the target.

    The account has one step for each round, for every client, asked or not. A `sample_rate` is a
    public number, and the account is about one example more or less. Without one, each client draws
    with a rate of its own, batch_size over its number of examples: the largest of them is accounted
    for, these numbers are public, and one example is replaced by an empty one ("zero-out", see
    `epsilon_after`). Shuffled batches are accounted for as if each example were in every step, and
    was replaced by another: adding one would move all that come after it. Of a client, whose
    messages can be counted, all that it sends is replaced by messages without examples.

    Args:
        config: What to train.
        targets: The labels of the training examples, before they are given to clients.
        allow_imports: As for `build_run`.
    """
    defense = private_defense(config, allow_imports=allow_imports)
    if defense is None:
        return config, None
    spec = Spec.parse(config.defense, "defense").named()
    if config.local_steps is not None and "unit" not in spec.options:
        spec, defense = spec.with_(unit="client"), replace(defense, unit="client")
    rate, neighbours = _sampled(config, defense, targets)
    multiplier = defense.noise_multiplier
    if MULTIPLIER in spec.missing:
        multiplier = _solved(config, rate, neighbours)
        spec = spec.with_(**{MULTIPLIER: multiplier})
    account = PrivacyAccount(
        multiplier,
        rate,
        config.delta,
        unit=defense.unit,
        budget=config.target_epsilon,
        neighbours=neighbours,
        grid=defense.grid,
    )
    return replace(config, defense=str(spec)), account


def _sampled(config: TrainingConfig, defense: PrivateNoise, targets: Tensor) -> tuple[float, str]:
    """The sampling rate, and the neighbours, that the account is about."""
    if defense.unit == "client":
        return 1.0, "zero-out"
    if config.sampling == "shuffle":
        return 1.0, "replace-one"
    if config.sample_rate is not None:
        return config.sample_rate, "add-remove"
    parts = partition(
        targets, config.clients, config.partition, alpha=config.alpha, seed=config.seed
    )
    rates = [min(1.0, config.batch_size / len(part)) for part in parts if len(part)]
    return max(rates, default=1.0), "zero-out"


def _solved(config: TrainingConfig, rate: float, neighbours: str) -> float:
    """The multiplier for the target, rounded up."""
    target, delta, rounds = config.target_epsilon, config.delta, config.rounds
    assert target is not None  # else it would not be missing
    found = solve_noise_multiplier(target, delta, rate, rounds, neighbours)
    found = math.ceil(found * 1e4) / 1e4
    while epsilon_on_grid(found, rate, rounds, delta, neighbours) > target:
        found = round(found * (1 + 1e-4), 8)
    return found


SEEDED = (
    "A simulation, which protects nobody: the noise came from a seed, and whoever knows it can take"
    " it off. Leave the seed out where data is private."
)


def privacy_statement(history: TrainingHistory) -> str | None:
    """ε(δ) of a run with all that it means: unit, neighbours, sampling; `None` without an account.

    A run whose noise had a seed says that first: see `SEEDED`.
    """
    told = history.privacy
    if told is None:
        return None
    spent = history.rounds[-1].epsilon if history.rounds else 0.0
    unit = told["unit"]
    lines = [SEEDED, "Without one it would be:"] if history.simulation else []
    lines += [
        f"ε = {spent:.4g} at δ = {told['delta']:g} after {len(history.rounds)} rounds, for each"
        f" {unit} ({told['hides']}), noise multiplier {told['noise_multiplier']:.4g}.",
        f"Sampling: {told['sampling']}.",
    ]
    if unit == "client":
        lines.append(
            "Each client's message is clipped as a whole and noised by the client; that it takes"
            " part is not hidden."
        )
    elif told["neighbours"] == "zero-out" and told["sample_rate"] < 1:
        lines.append("Where clients have other rates, the largest is accounted for.")
    if unit == "client" or told["sample_rate"] == 1:
        lines.append("Nothing is gained from clients or examples that were not drawn.")
    if not told.get("grid", True):
        lines.append(
            "The noise is continuous: what the last bits of floating-point sums tell is not"
            " covered."
        )
    lines.append(
        "Covered is what clients send. The losses, U1 and U2 of their batches are not: do not"
        " publish them."
    )
    return " ".join(lines)

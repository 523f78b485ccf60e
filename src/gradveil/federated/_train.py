"""Training from a configuration, with its files."""

import io
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from gradveil._checks import WrongValue, check_count, check_flag, check_kind
from gradveil._files import alone_in, write_atomically
from gradveil._imports import AllowImports
from gradveil.catalog import Spec, build_defense
from gradveil.defenses import PrivateNoise
from gradveil.models import build_fitting_model, count_outputs, default_model
from gradveil.privacy import PrivacyAccount, epsilon_on_grid, solve_noise_multiplier

from ._client import Client
from ._config import Split, TrainingConfig, load_split
from ._planner import Planner
from ._run import CHECKPOINT, FederatedRun, OnRound
from ._server import Server, TrainingHistory

HISTORY, MULTIPLIER = "history.json", "noise_multiplier"


def private_defense(
    config: TrainingConfig, *, allow_imports: AllowImports = False
) -> PrivateNoise | None:
    """The defense of a run, if it has (ε, δ); an error if there is a target and it has none.

    With a target its noise multiplier may be left out: 1 stands in its place here.
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
        expected = "be left out for a defense without (ε, δ)"
        raise WrongValue("target_epsilon", expected, found, "Use private-noise(clip=1.0).")
    return None


def accounted(
    config: TrainingConfig, targets: Tensor, *, allow_imports: AllowImports = False
) -> tuple[TrainingConfig, PrivacyAccount | None]:
    """The configuration with all of a private defense in it, and its account; else neither changes.

    Local steps make an update that is clipped as a whole (unit="client"). A multiplier that was
    left out is the smallest with ε(δ) ≤ `target_epsilon` after all rounds. One that was given
    stays: the run then ends before the round that would exceed the target.

    The account has one step for each round, for every client, asked or not. A `sample_rate` is a
    public number, and the account is about one example more or less. Without one, each client draws
    with a rate of its own, batch_size over its number of examples: the largest of them is accounted
    for, these numbers are public, and one example is replaced by an empty one ("zero-out", see
    `epsilon_after`). Shuffled batches are accounted for as if each example were in every step, and
    was replaced by another: adding one would move all that come after it. Of a client, whose
    messages can be counted, all that it sends is replaced by messages without examples.

    `targets` are the labels of the training examples, before they are given to clients.
    """
    defense = private_defense(config, allow_imports=allow_imports)
    if defense is None:
        return config, None
    spec = Spec.parse(config.defense, "defense")
    if config.local_steps is not None and "unit" not in spec.arguments:
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
    parts = config.parts_of(targets)
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


def initial_model(
    config: TrainingConfig, data: Split, *, allow_imports: AllowImports = False
) -> nn.Module:
    """The model with its initial weights, which the seed determines; checked to fit the data."""
    shape = data.inputs.shape[1:]
    model = build_fitting_model(
        config.model, shape, data.num_classes, config.seed, allow_imports=allow_imports
    ).to(config.device)
    count_outputs(model, config.loss_fn, data.inputs[:2], data.targets)
    return model


def build_run(
    config: TrainingConfig,
    data: Split | None = None,
    *,
    planner: Planner | None = None,
    allow_imports: AllowImports = False,
) -> FederatedRun:
    """The run that a configuration describes, before its first round (see `accounted`).

    Args:
        data: What `load_split(config)` gave; loaded if `None`.
        planner: Of the shape for clients whose defense waits for the server's; one of the first 128
            held-out examples, which stand for public ones, if `None`.
        allow_imports: Whether model and defense may be import paths, whose code is then run: True
            for a configuration of the local user's own, or the paths that are allowed.
    """
    data = load_split(config) if data is None else data
    config = replace(config, model=config.model or default_model(data.inputs.shape[1:]))
    config, account = accounted(config, data.targets, allow_imports=allow_imports)
    defense = build_defense(config.defense, allow_imports=allow_imports)
    if planner is None and defense.about.source == "server":
        public = data.held_out
        if public is None or len(public[0]) < 2:
            expected = f"leave examples for the server's plan, which `{config.defense}` waits for"
            raise WrongValue("held_out", expected, "none", "Raise it, or give a planner.")
        planner = Planner(
            (public[0][:128], public[1][:128]),
            config.loss_fn,
            batch_size=config.batch_size,
            local=config.local,
            seed=config.seed,
        )
    model = initial_model(config, data, allow_imports=allow_imports)
    parts = config.parts_of(data.targets)
    clients = [
        Client(
            identifier,
            data.inputs[part],
            data.targets[part],
            defense,
            batch_size=config.batch_size,
            seed=config.seed,
            local=config.local,
            sampling=config.sampling,
            sample_rate=config.sample_rate,
            secure=config.secure,
        )
        for identifier, part in enumerate(parts)
    ]
    return FederatedRun(
        Server(model, config.optimizer_of(model), config.sends),
        clients,
        config.loss_fn,
        fraction=config.fraction,
        seed=config.seed,
        held_out=data.held_out,
        evaluate_every=config.evaluate_every,
        account=account,
        planner=planner,
        config=config.to_dict(),
    )


def train(
    config: TrainingConfig,
    data: Split | None = None,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    checkpoint_every: int = 8,
    on_round: OnRound = lambda _: None,
    allow_imports: AllowImports = False,
) -> TrainingHistory:
    """Train, and write checkpoints and results to the folder `out`, each whole or not at all.

    With `resume`, continue from the folder's checkpoint, if there is one: the weights and all
    numbers are then those of a run that was never stopped. A folder takes one run at a time.
    """
    check_kind(config, "config", TrainingConfig, "Use for example `TrainingConfig(rounds=2)`.")
    check_flag(resume, "resume")
    check_count(checkpoint_every, "checkpoint_every")
    if resume and out is None:
        advice = "Give it, or leave `resume` out."
        raise WrongValue("out", "be the folder of the run to resume", "None", advice)
    run = build_run(config, data, allow_imports=allow_imports)
    if out is None:
        return run.run(config.rounds, on_round=on_round)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        if resume and (folder / CHECKPOINT).exists():
            run.resume(folder)
        else:
            _check_unused(folder)
        history = run.run(
            config.rounds, folder=folder, checkpoint_every=checkpoint_every, on_round=on_round
        )
        weights = io.BytesIO()
        torch.save(run.server.model.state_dict(), weights)
        write_atomically(folder / "model.pt", weights.getvalue())
        write_atomically(folder / HISTORY, history.to_json())
        write_atomically(folder / "rounds.csv", history.to_csv())
    return history


def _check_unused(folder: Path) -> None:
    """Require a folder without the results or checkpoints of another run."""
    continued = "Continue it with `resume` (`--resume`)"
    for name, advice in ((CHECKPOINT, continued), (HISTORY, "Remove it")):
        if (folder / name).exists():
            raise FileExistsError(
                f"Folder `{folder}` should hold no results of an earlier run. Found `{name}`."
                f" {advice}, or choose another folder."
            )

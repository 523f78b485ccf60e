"""Training from a configuration, with its files."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gradveil._checks import check_count, check_flag, check_kind
from gradveil._imports import AllowImports

from ._config import Split, TrainingConfig, build_clients, build_server, load_split, usual_planner
from ._planner import Planner
from ._private import account_of, settled
from ._run import FederatedRun, OnRound
from ._storage import (
    TrainingHistory,
    check_unused,
    has_checkpoint,
    hold_folder,
    save_history,
    save_weights,
)


def build_run(
    config: TrainingConfig,
    data: Split | None = None,
    *,
    planner: Planner | None = None,
    allow_imports: AllowImports = False,
) -> FederatedRun:
    """The run that a configuration describes, before its first round.

    With a defense that has (ε, δ) it is accounted for (`account_of`), and ends before a round that
    would exceed `target_epsilon`.

    Args:
        config: What to train.
        data: What `load_split(config)` gave; loaded if `None`.
        planner: Of the shape for clients whose defense is `from-server(...)`; see `build_planner`.
            For these, held-out examples are planned from if `None`.
        allow_imports: Whether model and defense may be import paths, whose code is then run: True
            for a configuration of the local user's own, or the paths that are allowed.
    """
    data = load_split(config) if data is None else data
    config = settled(config, data.targets, allow_imports=allow_imports)
    if planner is None:
        planner = usual_planner(config, data, allow_imports=allow_imports)
    return FederatedRun(
        build_server(config, data, allow_imports=allow_imports),
        build_clients(config, data, allow_imports=allow_imports),
        config.loss_fn,
        fraction=config.fraction,
        seed=config.seed,
        held_out=data.held_out,
        evaluate_every=config.evaluate_every,
        account=account_of(config, data.targets, allow_imports=allow_imports),
        planner=planner,
    )


def train(
    config: TrainingConfig,
    data: Split | None = None,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    checkpoint_every: int = 8,
    on_round: OnRound = lambda _: None,
    on_notice: Callable[[str], None] = warnings.warn,
    planner: Planner | None = None,
    allow_imports: AllowImports = False,
) -> TrainingHistory:
    """Train, and write checkpoints and results to the folder `out`.

    With `resume`, continue from the folder's checkpoint, if there is one: the weights and all
    numbers but the times are then those of a run that was never stopped. A checkpoint that is
    damaged is refused with a notice, and the one before it used. A folder takes one run at a time.
    `data`, `planner` and `allow_imports` are those of `build_run`.
    """
    check_kind(config, "config", TrainingConfig, "Use for example `TrainingConfig(rounds=2)`.")
    check_flag(resume, "resume")
    check_count(checkpoint_every, "checkpoint_every")
    if resume and out is None:
        raise ValueError(
            "Parameter `out` should be the folder of the run to resume. Found None. Give it"
            " (`--out`), or leave `resume` out."
        )
    data = load_split(config) if data is None else data
    config = settled(config.fitted_to(data), data.targets, allow_imports=allow_imports)
    run = build_run(config, data, planner=planner, allow_imports=allow_imports)
    folder = None if out is None else Path(out)
    with hold_folder(folder):
        if folder is not None and resume and has_checkpoint(folder):
            _continue(run, folder, on_notice)
        elif folder is not None:
            check_unused(folder)
        run.run(config.rounds, folder=folder, checkpoint_every=checkpoint_every, on_round=on_round)
        history = replace(run.history, config=config.to_dict())
        if folder is not None:
            save_weights(run.server.model, folder / "model.pt")
            save_history(history, folder)
    return history


def _continue(run: FederatedRun, folder: Path, on_notice: Callable[[str], None]) -> None:
    refused = run.resume(folder)
    if refused is not None:
        on_notice(f"{refused} Continuing from the one before, after round {len(run.rounds)}.")

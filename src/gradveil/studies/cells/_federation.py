"""A federation in one process from a cell's settings."""

from gradveil.catalog import build_defense
from gradveil.federated import (
    FederatedRun,
    Split,
    TrainingConfig,
    build_clients,
    build_server,
)
from gradveil.studies.runner import Settings

from ._parts import dataset
from ._public import from_examples

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
    clients = build_clients(config, split)
    if settings.get("public"):
        shared = from_examples(
            build_defense(config.defense), data, settings["public"], config.clients
        )
        for client in clients:
            client.defense = shared
    return FederatedRun(
        build_server(config, split),
        clients,
        config.loss_fn,
        seed=config.seed,
        held_out=held_out,
        evaluate_every=settings.get("evaluate_every", config.rounds),
    )

"""Data, model, clients and server from a configuration."""

from dataclasses import dataclass

from torch import Tensor, nn

from gradveil._imports import AllowImports
from gradveil.catalog import build_defense
from gradveil.data import Dataset, load_dataset
from gradveil.defenses import FromServer
from gradveil.models import build_fitting_model, count_classes

from ._client import Client
from ._config import OPTIMIZERS, TrainingConfig
from ._partition import partition
from ._planning import Planner
from ._server import Server

HELD_OUT = 512
"""Examples for evaluation, where the user does not say."""

PUBLIC = 128
"""Of these, so many are what a server plans from."""


@dataclass(frozen=True)
class Split:
    """Training and held-out examples."""

    inputs: Tensor
    targets: Tensor
    held_out: tuple[Tensor, Tensor] | None
    num_classes: int


def load_split(config: TrainingConfig) -> Split:
    """Load the data and cut it as the configuration says."""
    return split_data(config, load_dataset(config.data))


def split_data(config: TrainingConfig, data: Dataset) -> Split:
    """Training and held-out examples, cut as the configuration says."""
    data = data.to(config.device)
    held_out = _count_held_out(config, len(data))
    count = len(data) - held_out if config.limit is None else min(config.limit, len(data))
    kept = None
    if held_out:
        start = count if config.held_out_start is None else config.held_out_start
        _check_start(start, count, held_out, len(data))
        end = min(len(data), start + held_out)
        kept = (data.inputs[start:end], data.targets[start:end])
    return Split(data.inputs[:count], data.targets[:count], kept, data.num_classes)


def initial_model(
    config: TrainingConfig, data: Split, *, allow_imports: AllowImports = False
) -> nn.Module:
    """The model with its initial weights, which the seed determines; checked to fit the data."""
    shape = data.inputs.shape[1:]
    model = build_fitting_model(
        config.model, shape, data.num_classes, config.seed, allow_imports=allow_imports
    ).to(config.device)
    count_classes(model, config.loss_fn, data.inputs[:2], data.targets)
    return model


def build_clients(
    config: TrainingConfig, data: Split, *, allow_imports: AllowImports = False
) -> list[Client]:
    """All clients, 0 to `clients - 1`."""
    parts = partition(
        data.targets, config.clients, config.partition, alpha=config.alpha, seed=config.seed
    )
    return [
        Client(
            identifier,
            data.inputs[part],
            data.targets[part],
            build_defense(config.defense, allow_imports=allow_imports),
            batch_size=config.batch_size,
            seed=config.seed,
            local=config.local,
            sampling=config.sampling,
            secure=config.secure,
        )
        for identifier, part in enumerate(parts)
    ]


def build_server(
    config: TrainingConfig, data: Split, *, allow_imports: AllowImports = False
) -> Server:
    """The server with the initial model and its optimizer."""
    model = initial_model(config, data, allow_imports=allow_imports)
    trained = [p for p in model.parameters() if p.requires_grad]
    kind = "gradient" if config.local_steps is None else "update"
    assert config.optimizer is not None  # __post_init__ has put the usual one there
    return Server(model, OPTIMIZERS[config.optimizer](trained, lr=config.lr), kind)


def usual_planner(
    config: TrainingConfig, data: Split, *, allow_imports: AllowImports = False
) -> Planner | None:
    """The planner of a run whose clients wait for the server's shapes; `None` for all others.

    It plans from the first 128 held-out examples, which stand for public ones.
    """
    if not isinstance(build_defense(config.defense, allow_imports=allow_imports), FromServer):
        return None
    if data.held_out is None or len(data.held_out[0]) < 2:
        raise ValueError(
            f"Parameter `held_out` should leave examples for the server to plan from, which"
            f" `{config.defense}` waits for. Found none. Raise it (`--held-out`), or give a"
            " planner with public examples."
        )
    inputs, targets = data.held_out
    return build_planner(config, (inputs[:PUBLIC], targets[:PUBLIC]))


def build_planner(
    config: TrainingConfig, public: tuple[Tensor, Tensor], refresh_every: int = 10
) -> Planner:
    """A planner for the clients of this configuration, from public inputs and targets."""
    return Planner(
        public,
        config.loss_fn,
        refresh_every,
        batch_size=config.batch_size,
        local=config.local,
        seed=config.seed,
    )


def _count_held_out(config: TrainingConfig, available: int) -> int:
    if config.held_out is None:
        return HELD_OUT if config.limit is not None else min(HELD_OUT, max(1, available // 5))
    if config.limit is None and config.held_out >= available:
        raise ValueError(
            f"Parameter `held_out` should be below the {available} examples of `{config.data}`."
            f" Found `held_out = {config.held_out}`. Lower it (`--held-out`), or set `limit`."
        )
    return config.held_out


def _check_start(start: int, count: int, held_out: int, available: int) -> None:
    if start < count or start >= available:
        raise ValueError(
            f"Parameter `held_out_start` should leave {held_out} examples behind the {count} for"
            f" training, of {available} in all. Found `held_out_start = {start}`. Lower `limit`, or"
            " set `held_out` to 0."
        )

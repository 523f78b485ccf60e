"""Federated training in one process: clients that defend what they send, and a server.

>>> from gradveil.federated import TrainingConfig, train
>>> config = TrainingConfig(rounds=2, limit=256, held_out=64, defense="gradient-noise(0.01)")
>>> history = train(config)
>>> len(history.rounds), history.rounds[0].examples
(2, 64)
"""

from gradveil._random import named_stream as stream
from gradveil.messages import LocalSteps

from ._build import (
    Split,
    build_clients,
    build_planner,
    build_server,
    initial_model,
    load_split,
    split_data,
    usual_planner,
)
from ._client import Client, NoDataError
from ._config import OPTIMIZERS, TrainingConfig, count_rounds
from ._evaluate import Evaluation, evaluate
from ._guard import ModelGuard, SuspiciousModelError
from ._healthy import NoSignalError
from ._incoming import load_received
from ._limits import LimitError, Limits, RoundSettings
from ._partition import partition
from ._planning import PackedShape, Planner
from ._private import (
    SEEDED,
    account_of,
    budget_spent,
    privacy_statement,
    private_defense,
    settled,
)
from ._reply import Costs, Reply
from ._round import NoReplyError, play_round
from ._run import FederatedRun
from ._sampling import sample_clients
from ._server import Server, admit, aggregate
from ._storage import (
    CheckpointError,
    RoundMetrics,
    Skip,
    TrainingHistory,
    check_unused,
    digest,
    draw_curves,
    hold_folder,
    load_checkpoint,
    save_checkpoint,
    save_history,
    save_weights,
)
from ._train import build_run, train

__all__ = [
    "OPTIMIZERS",
    "SEEDED",
    "CheckpointError",
    "Client",
    "Costs",
    "Evaluation",
    "FederatedRun",
    "LimitError",
    "Limits",
    "LocalSteps",
    "ModelGuard",
    "NoDataError",
    "NoReplyError",
    "NoSignalError",
    "PackedShape",
    "Planner",
    "Reply",
    "RoundMetrics",
    "RoundSettings",
    "Server",
    "Skip",
    "Split",
    "SuspiciousModelError",
    "TrainingConfig",
    "TrainingHistory",
    "account_of",
    "admit",
    "aggregate",
    "budget_spent",
    "build_clients",
    "build_planner",
    "build_run",
    "build_server",
    "check_unused",
    "count_rounds",
    "digest",
    "draw_curves",
    "evaluate",
    "hold_folder",
    "initial_model",
    "load_checkpoint",
    "load_received",
    "load_split",
    "partition",
    "play_round",
    "privacy_statement",
    "private_defense",
    "sample_clients",
    "save_checkpoint",
    "save_history",
    "save_weights",
    "settled",
    "split_data",
    "stream",
    "train",
    "usual_planner",
]

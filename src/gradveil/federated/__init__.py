"""Federated training in one process: clients that defend what they send, and a server.

>>> from gradveil.federated import TrainingConfig, train
>>> config = TrainingConfig(rounds=2, limit=256, held_out=64, defense="gradient-noise(0.01)")
>>> history = train(config)
>>> len(history.rounds), history.rounds[0].examples
(2, 64)
"""

from gradveil._random import named_stream as stream
from gradveil.messages import LocalSteps

from ._client import Client, NoDataError
from ._config import (
    OPTIMIZERS,
    Split,
    TrainingConfig,
    build_clients,
    build_planner,
    build_server,
    count_rounds,
    initial_model,
    load_split,
    split_data,
    usual_planner,
)
from ._federation import Federation
from ._guard import ModelGuard, SuspiciousModelError
from ._limits import LimitError, Limits, RoundSettings
from ._partition import partition
from ._planner import PackedShape, Planner
from ._private import SEEDED, account_of, budget_spent, privacy_statement, private_defense, settled
from ._reply import Costs, NoSignalError, Reply, load_received
from ._run import Evaluation, FederatedRun, NoReplyError, evaluate, play_round
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

# What `__all__` does not list is for our own packages.
__all__ = [
    "CheckpointError",
    "Client",
    "FederatedRun",
    "Federation",
    "LimitError",
    "Limits",
    "LocalSteps",
    "ModelGuard",
    "NoDataError",
    "NoReplyError",
    "NoSignalError",
    "Planner",
    "Reply",
    "RoundMetrics",
    "Server",
    "SuspiciousModelError",
    "TrainingConfig",
    "TrainingHistory",
    "evaluate",
    "partition",
    "train",
]

"""Federated training in one process: clients that defend what they send, and a server.

>>> from gradveil.federated import TrainingConfig, train
>>> config = TrainingConfig(rounds=2, limit=256, held_out=64, defense="gradient-noise(0.01)")
>>> history = train(config)
>>> len(history.rounds), history.rounds[0].examples
(2, 64)
"""

from gradveil.messages import LocalSteps

from ._client import Client, NoReplyError, Reply, load_received
from ._config import (
    Federation,
    Split,
    TrainingConfig,
    count_rounds,
    load_split,
    partition,
    sample_clients,
)
from ._guard import Limits, ModelGuard, RefusedError
from ._planner import PackedShape, Planner
from ._run import Evaluation, FederatedRun, evaluate, round_metrics
from ._server import (
    SEEDED,
    RoundMetrics,
    Server,
    Skip,
    TrainingHistory,
    draw_curves,
    privacy_statement,
)
from ._train import build_run, initial_model, private_defense, train

# What `__all__` does not list is for our own packages.
__all__ = [
    "Client",
    "FederatedRun",
    "Federation",
    "Limits",
    "ModelGuard",
    "NoReplyError",
    "Planner",
    "RefusedError",
    "Server",
    "TrainingConfig",
    "TrainingHistory",
    "evaluate",
    "partition",
    "train",
]

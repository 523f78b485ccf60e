"""Defended clients and the servers they need, on Flower: the same in simulation and deployment.

A client of an existing Flower app is defended in a few lines::

    app = ClientApp()
    defense = gradveil.OptimalNoise(scale=0.01)
    app.train()(gradveil.flower.train_function(model, cross_entropy, load_data, defense))

and its server averages gradients and steps a torch optimizer::

    strategy = gradveil.flower.FedSGD(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    strategy.start(grid=grid, num_rounds=100)
"""

import os
from importlib.util import find_spec

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported

if find_spec("flwr") is None:
    raise ImportError(
        "`gradveil.flower` needs Flower, which is not installed. Install it with"
        " `pip install gradveil[flower]`."
    )

from gradveil.federated import Limits, LocalSteps

from ._records import reply_to
from ._simulation import run_simulation_of
from ._strategy import FedAvgUpdates, FedSGD, RoundReplies
from ._train import train_function

__all__ = [
    "FedAvgUpdates",
    "FedSGD",
    "Limits",
    "LocalSteps",
    "RoundReplies",
    "reply_to",
    "run_simulation_of",
    "train_function",
]

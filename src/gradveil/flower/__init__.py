"""Defended clients and the servers they need, on Flower: the same in simulation and deployment.

A client of an existing Flower app is defended in a few lines::

    app = ClientApp()
    defense = gradveil.OptimalNoise(scale=0.01)
    app.train()(gradveil.flower.train_function(model, cross_entropy, load_data, defense))

and its server averages gradients and steps a torch optimizer::

    strategy = gradveil.flower.FedSGD(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    strategy.start(grid=grid, num_rounds=100)
"""

# ruff: noqa: E402 (without Flower, the imports below fail with a less helpful error)

import os

from gradveil._imports import require

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported

require("gradveil.flower (on Python 3.11 or later)", "gradveil[flower]", "flwr")

from ._client import DefendReply, reply_to, train_function
from ._strategy import FedAvgUpdates, FedSGD

__all__ = ["DefendReply", "FedAvgUpdates", "FedSGD", "reply_to", "train_function"]

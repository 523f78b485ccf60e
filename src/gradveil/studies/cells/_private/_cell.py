"""The `private-training` cell: what a model learns from examples that (ε, δ) protects."""

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache

import torch
from torch.nn.functional import cross_entropy

from gradveil._random import named_stream
from gradveil.federated import evaluate
from gradveil.privacy import PrivacyAccount, poisson_sample, solve_noise_multiplier
from gradveil.studies.runner import Settings, Value, cell_function

from .._parts import dataset, model
from ._ways import WAYS, Training, opacus_epsilon


@cell_function("private-training")
def private_training(settings: Settings) -> Mapping[str, Value]:
    """Train with Adam on Poisson samples, each step a private gradient, and evaluate.

    Runs of one seed share the weights at the start and the samples, whatever the way to a private
    gradient. A seeded run protects nobody: this is a simulation. Settings: `data`, `model`, `way`
    ("plain", "isotropic", "shaped" or "opacus"), `epsilon` of the whole training (None for
    "plain"), `delta`, `clip`, `batch_size` (expected), `steps`, `examples` (to train on, from 0),
    `lr`, `public` (`start` and `count` of the examples that the shape is made from, every
    `refresh` steps), `held_out_start`, `held_out`, `seed`.
    """
    data, seed, steps = dataset(settings["data"]), settings["seed"], settings["steps"]
    inputs, targets = data.batch(0, settings["examples"])
    rate = settings["batch_size"] / settings["examples"]
    multiplier = _multiplier(settings["epsilon"], settings["delta"], rate, steps)
    net = deepcopy(model({**settings, "model_seed": seed}))
    noise = named_stream("studies", seed, "noise", 0)
    gradient = WAYS[settings["way"]](Training(net, data, settings, multiplier, noise))
    optimizer = torch.optim.Adam(net.parameters(), lr=settings["lr"])
    sampling = named_stream("studies", seed, "sampling", 0)
    for step in range(steps):
        chosen = poisson_sample(len(inputs), rate, sampling)
        gradient(step, inputs[chosen], targets[chosen])
        optimizer.step()
    held_out = data.batch(settings["held_out_start"], settings["held_out"])
    found = evaluate(net, cross_entropy, *held_out)
    return {
        "loss": found.loss,
        "accuracy": found.accuracy,
        "noise_multiplier": multiplier or None,
        **_spent(settings, rate, multiplier),
    }


@lru_cache(maxsize=16)
def _multiplier(epsilon: float | None, delta: float, rate: float, steps: int) -> float:
    """The noise that spends ε in all steps together; 0 where there is no ε."""
    return 0.0 if epsilon is None else solve_noise_multiplier(epsilon, delta, rate, steps)


def _spent(settings: Settings, rate: float, multiplier: float) -> dict[str, Value]:
    """ε by our accountant, and for Opacus by its own."""
    if not multiplier:
        return {"epsilon": None, "epsilon_opacus": None}
    account = PrivacyAccount(multiplier, rate, settings["delta"])
    account.step(settings["steps"])
    theirs = None
    if settings["way"] == "opacus":
        theirs = opacus_epsilon(multiplier, rate, settings["steps"], settings["delta"])
    return {"epsilon": account.epsilon(), "epsilon_opacus": theirs}

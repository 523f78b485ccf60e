"""The `candidate-bound` cell: the error of the best attacker who is told real candidates."""

from collections.abc import Mapping
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gradveil._random import named_stream
from gradveil.attacks import Identify, ThreatModel, observe
from gradveil.data import Dataset
from gradveil.studies.runner import Settings, Value, cell_function

from .._parts import dataset, model
from .._public import planned_defense


@cell_function("candidate-bound")
def candidate_bound(settings: Settings) -> Mapping[str, Value]:
    """The error per entry of the posterior's mean over candidates, one image being the truth.

    The other candidates are of the image's class and drawn from a population that has neither it
    nor the plan's examples. In the mean over images no attacker's error is smaller
    (`gradveil.attacks.candidate_bound`): whoever is told more can ignore it. Settings: `data`,
    `model`, `start` of the image, `defense`, `candidates`, `population` (`start`, `count`),
    `trials` (draws of the noise), `seed`; optional `public`, `model_seed`, `trained`.
    """
    data, net = dataset(settings["data"]), model(settings)
    truth = data.batch(settings["start"], 1)
    defense, mechanism = planned_defense(settings)
    generator = named_stream("studies", settings["seed"], "candidates", settings["start"])
    candidates = _candidates(settings, data, truth, generator)
    messages = [
        observe(
            net,
            cross_entropy,
            truth,
            defense,
            threat=ThreatModel(mechanism="known"),
            num_classes=data.num_classes,
            public_mechanism=mechanism,
            generator=generator,
        )
        for _ in range(settings["trials"])
    ]
    found = Identify(candidates).many(messages, generator)
    return {
        "error": fmean(one.error(truth[0][0]) for one in found),
        "right": [one.best == 0 for one in found],
        "blind_error": float((candidates[0].mean(0) - truth[0][0]).double().square().mean()),
    }


def _candidates(
    settings: Settings, data: Dataset, truth: tuple[Tensor, Tensor], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The truth first, then others of its class."""
    population = settings["population"]
    inputs, targets = data.batch(population["start"], population["count"])
    alike = (targets == truth[1]).nonzero().flatten()
    needed = settings["candidates"] - 1
    if len(alike) < needed:
        raise ValueError(
            f"Setting `population` should hold {needed} examples of class {int(truth[1])}. Found"
            f" {len(alike)}. Ask for fewer candidates."
        )
    chosen = alike[torch.randperm(len(alike), generator=generator)[:needed]]
    return torch.cat([truth[0], inputs[chosen]]), torch.cat([truth[1], targets[chosen]])

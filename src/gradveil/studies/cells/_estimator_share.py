"""The `estimator-share` cell: the share of the optimum that an estimator reaches."""

import json
from collections.abc import Mapping
from functools import lru_cache

from gradveil._random import named_stream
from gradveil.bench import Case
from gradveil.catalog import build_estimator
from gradveil.defenses import GradientNoise, OptimalNoise
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments
from gradveil.studies.runner import Settings, Value, canonical_json, cell_function
from gradveil.theory import share_of_optimum

from ._parts import dataset, model

ISOTROPIC, LAYERS = "isotropic", "layers"
"""Not estimators: the same noise everywhere, and one optimal level for each tensor."""
PAPER = "gradveil.bench._paper:PaperAlgorithm"
"""Not registered: the paper's way to sensitivities, slow on purpose."""


def case_of(settings: Settings) -> Case:
    """The model and the batch."""
    batch = dataset(settings["data"]).batch(settings["start"], settings["size"])
    return Case(settings["model"], model(settings), *batch)


def noise_of(settings: Settings) -> GradientNoise | OptimalNoise:
    """The noise that is planned with the estimator."""
    name = settings["estimator"]
    if name == ISOTROPIC:
        return GradientNoise(1.0)
    if name == LAYERS:
        return OptimalNoise(1.0, cap=1e6, granularity="layer", plan_from="private")
    estimator = build_estimator(name, allow_imports=[PAPER])
    return OptimalNoise(1.0, cap=1e6, estimator=estimator, plan_from="private")


@cell_function("estimator-share")
def estimator_share(settings: Settings) -> Mapping[str, Value]:
    """The share of the largest bound at equal utility that a plan from the estimate reaches.

    Settings: `data`, `model`, `start`, `size`, `estimator`, `reference_probes` (for each example,
    in place of exact sensitivities), `seed`; optional `model_seed`, `trained`.
    """
    case, defense = case_of(settings), noise_of(settings)
    generator = named_stream("studies", settings["seed"], "probes", settings["start"])
    mechanism = defense.respond(case.message, case.inputs, generator).mechanism
    assert isinstance(mechanism, Mechanism)
    return {"share": share_of_optimum(_reference(_without_estimator(settings)), mechanism)}


def _without_estimator(settings: Settings) -> str:
    kept = {key: value for key, value in settings.items() if key not in ("estimator", "seed")}
    return canonical_json(kept)


@lru_cache(maxsize=32)
def _reference(text: str) -> Moments:
    """What stands for the exact sensitivities; most of the work, and the same for all estimators.

    It does not depend on what was computed before, so a cell's result does not either.
    """
    settings = json.loads(text)
    return case_of(settings).reference(settings["reference_probes"])

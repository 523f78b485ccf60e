"""Theorems 2 to 4 with data-set moments against the local forms, on a batch of its own."""

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import cross_entropy

from gradveil._random import named_stream
from gradveil._tensors import flatten
from gradveil.catalog import build_defense
from gradveil.defenses import Defense, PruningDefense, keep_within
from gradveil.mechanisms import Mechanism
from gradveil.messages import GradientMessage
from gradveil.sensitivity import Moments, PerExample, measure
from gradveil.studies.runner import Settings, Value, cell_function
from gradveil.theory import share_of_optimum

from ._parts import dataset, model
from ._public import public_moments


@cell_function("plan-quality")
def plan_quality(settings: Settings) -> Mapping[str, Value]:
    """What a plan keeps of the protection that is possible on the batch, at equal utility.

    For noise it is the share of the largest trace bound at equal U2; for pruning the least
    information Σ_kept ‖∇g_i‖² that is possible at equal U1 (half of Σ g_i²), over the plan's own.
    Settings: `data`, `model`, `start`, `size`, `defense`, `public` or None (the plan is made from
    the batch itself), `probes` of the reference, `seed`; optional `model_seed`, `trained`.
    """
    data, net = dataset(settings["data"]), model(settings)
    inputs, targets = data.batch(settings["start"], settings["size"])
    message = GradientMessage(net, cross_entropy, targets)
    defense = build_defense(settings["defense"])
    generator = named_stream("studies", settings["seed"], "probes", settings["start"])
    moments = defense.observe(message, inputs, generator)[1]
    clip = defense.clamp
    if settings["public"] and defense.needs_sensitivities:
        moments = public_moments(net, data, settings["public"], clip)
    exact = measure(message, inputs, PerExample(settings["probes"]), generator=generator)
    return {"share": _share(defense, moments, exact)}


def _share(defense: Defense, moments: Moments, exact: Moments) -> float:
    if isinstance(defense, PruningDefense):
        ideal = flatten(exact.known_squared_sensitivities) / flatten(exact.squared_values).clamp(
            min=1e-12
        )
        scores = flatten(defense.scores(moments))
        return _revealed(ideal, exact) / _revealed(scores, exact)
    mechanism = defense.plan(moments)
    assert isinstance(mechanism, Mechanism)
    return share_of_optimum(exact, mechanism)


def _revealed(scores: Tensor, exact: Moments) -> float:
    """Σ_kept ‖∇g_i‖² when the lowest scores are kept until half of Σ g_i² is."""
    squares, slopes = flatten(exact.squared_values), flatten(exact.known_squared_sensitivities)
    kept = keep_within(scores, squares, float(squares.double().sum()) / 2)
    return float((kept * slopes).double().sum())

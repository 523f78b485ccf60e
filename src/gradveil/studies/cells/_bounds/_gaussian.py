"""The `bound` cell: the lower bound on any attacker's error at one batch."""

from collections.abc import Mapping
from functools import lru_cache

from torch.nn.functional import cross_entropy

from gradveil._random import named_stream
from gradveil.catalog import build_defense
from gradveil.messages import GradientMessage
from gradveil.studies.runner import Settings, Value, cell_function
from gradveil.theory import GaussianPrior, reconstruction_bound, utility

from .._parts import dataset, model
from .._public import public_moments

RIDGE = 0.01
"""Of the prior of all cells that are published; it widens the prior (see `GaussianPrior.fit`)."""


@cell_function("bound")
def bound(settings: Settings) -> Mapping[str, Value]:
    """The full Bayesian Cramér-Rao bound for one entry, and the utilities.

    The prior is a Gaussian fitted to the last `prior_samples` examples. With `public` the plan is
    made from other data, and the bound holds as it stands; a plan made from the batch reveals more
    than the bound counts. Settings: `data`, `model`, `start`, `size`, `defense`, `prior_samples`,
    `seed`; optional `public`, `model_seed`, `trained`.
    """
    data, net = dataset(settings["data"]), model(settings)
    inputs, targets = data.batch(settings["start"], settings["size"])
    message = GradientMessage(net, cross_entropy, targets)
    generator = named_stream("studies", settings["seed"], "bound", settings["start"])
    defense, public = build_defense(settings["defense"]), settings.get("public")
    values, moments = defense.observe(message, inputs, generator)
    if public:
        moments = public_moments(net, data, public, defense.clamp)
    mechanism = defense.plan(moments)
    prior = _prior(settings["data"], settings["prior_samples"])
    error_bound = reconstruction_bound(message, inputs, mechanism, prior, generator=generator)
    first, second = utility(values, mechanism)
    return {
        "bound": error_bound.per_entry,
        "standard_error": error_bound.standard_error / inputs.numel(),
        "prior": error_bound.prior,
        "prior_variance": float(prior.covariance.diagonal().mean()),
        "utility_first": first,
        "utility_second": second,
    }


@lru_cache(maxsize=2)
def _prior(name: str, samples: int) -> GaussianPrior:
    return GaussianPrior.fit(dataset(name).inputs[-samples:], RIDGE)

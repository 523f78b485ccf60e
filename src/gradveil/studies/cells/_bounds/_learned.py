"""The `learned-bound` cell: bounds with a prior that a denoiser learned from public examples."""

from collections.abc import Mapping

from torch.nn.functional import cross_entropy

from gradveil._random import named_stream
from gradveil.catalog import build_defense
from gradveil.denoising import LearnedPriors
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import GradientMessage
from gradveil.studies.runner import Settings, Value, cell_function
from gradveil.theory import BoundCase, mean_bound

from .._parts import dataset, model
from .._public import public_moments


@cell_function("learned-bound")
def learned_bound(settings: Settings) -> Mapping[str, Value]:
    """For each defense the bound with the information's mean over single images, and its interval.

    All defenses are in one cell, because learning takes minutes. The labels are known to attacker
    and prior. A denoiser is not the best possible, so the numbers err upwards. Settings: `data`,
    `model`, `defenses` (specification and `public` or None of each), `start` and `batches` (single
    images), `prior` (`start`, `count`, training `steps`), `probes`, `seed`; optional `model_seed`,
    `trained`.
    """
    data, seed = dataset(settings["data"]), settings["seed"]
    prior = settings["prior"]
    examples = data.batch(prior["start"], prior["count"])
    generator = named_stream("studies", seed, "learned prior", 0)
    priors = LearnedPriors.fit(*examples, steps=prior["steps"], generator=generator)
    found: dict[str, Value] = {}
    for spec, public in settings["defenses"]:
        cases = _cases(settings, spec, public)
        learned = priors.covering(cases, named_stream("studies", seed, "covering", 0))
        bound = mean_bound(
            cases,
            learned,
            public_plan=True,
            probes=settings["probes"],
            generator=named_stream("studies", seed, "bound", 0),
        )
        low, high = bound.interval or (None, None)
        found[spec] = {"bound": bound.per_entry, "low": low, "high": high, "reason": bound.reason}
    return {"bounds": found}


def _cases(settings: Settings, spec: str, public: Settings | None) -> list[BoundCase]:
    """The first images with one mechanism for all: it does not depend on them."""
    data, net, defense = dataset(settings["data"]), model(settings), build_defense(spec)
    mechanism: AnyMechanism | None = None
    if public:
        mechanism = defense.plan(public_moments(net, data, public, defense.clamp))
    cases = []
    for start in range(settings["start"], settings["start"] + settings["batches"]):
        inputs, targets = data.batch(start, 1)
        message = GradientMessage(net, cross_entropy, targets)
        if mechanism is None:
            generator = named_stream("studies", settings["seed"], "defense", start)
            mechanism = defense.plan(defense.observe(message, inputs, generator)[1])
        cases.append(BoundCase(message, inputs, mechanism))
    return cases

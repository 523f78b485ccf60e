"""The gain of plans from public examples over isotropic noise, on private batches."""

from collections.abc import Mapping
from functools import lru_cache
from json import dumps, loads

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from gradveil._random import named_stream
from gradveil.data import Dataset
from gradveil.defenses import OptimalNoise, Public, Released
from gradveil.mechanisms import Mechanism
from gradveil.messages import GradientMessage
from gradveil.plans import Evidence, model_moments, shape_with
from gradveil.sensitivity import Moments, PerExample, measure
from gradveil.studies.runner import Settings, Value, cell_function
from gradveil.theory import gain_over_isotropic

from ._parts import dataset, model

NAIVE = {
    "entry-wise": (1.0, 1.0, 1.0, 1.0),
    "rows x columns": (1.0, 1.0, 1.0, 0.0),
    "layer": (1.0, 0.0, 0.0, 0.0),
}
"""Theorem 2 with plain means over public batches, at three grains."""

STRANGE = ("noise", "random images", "random labels", "another data set")
"""Kinds of public examples that are not those of the task."""

UPDATES = 3
"""Global updates that `Released` has seen."""

NOISE = OptimalNoise(1.0)


@cell_function("public-plans")
def public_plans(settings: Settings) -> Mapping[str, Value]:
    """Gains of the trace bound at equal U2 on one private batch, by plan, as "plan/batches".

    Settings: `data`, `model`, `trained`, `start` and `size` of the private batch, `probes` of its
    sensitivities, `public`, where public examples begin, `counts` of public batches, `population`,
    the number of batches that stand for it, `strange`, the number of public batches of another
    kind, `seed`; optional `model_seed`.
    """
    data, net = dataset(settings["data"]), model(settings)
    inputs, targets = data.batch(settings["start"], settings["size"])
    message = GradientMessage(net, cross_entropy, targets)
    generator = named_stream("studies", settings["seed"], "probes", settings["start"])
    exact = measure(message, inputs, PerExample(settings["probes"]), generator=generator)
    plans = _plans(dumps({n: v for n, v in settings.items() if n not in ("start", "probes")}))
    gains: dict[str, float] = {
        name: gain_over_isotropic(exact, mechanism) for name, mechanism in plans.items()
    }
    own = OptimalNoise(1.0, plan_from="private").respond(message, inputs, generator).mechanism
    assert isinstance(own, Mechanism)
    return {"gains": {"private/0": gain_over_isotropic(exact, own), **gains}}


@lru_cache(maxsize=2)
def _plans(text: str) -> dict[str, Mechanism]:
    """Every plan that is no function of the private batch."""
    settings = loads(text)
    moments = _population(settings)
    plans = {"limit/0": _planned(Moments.average(moments))}
    for count in settings["counts"]:
        mean = Evidence(Moments.average(moments[:count]))
        for name, exponents in NAIVE.items():
            shape = shape_with([mean], settings["size"], exponents)
            like = mean.moments.squared_values
            plans[f"{name}/{count}"] = _planned(shape.moments(like, 1))
        plans[f"shrunk/{count}"] = _public(settings, "", count)
    for kind in STRANGE if settings["strange"] else ():
        plans[f"shrunk, {kind}/{settings['strange']}"] = _public(
            settings, kind, settings["strange"]
        )
    return {**plans, **_without_data(settings)}


def _planned(moments: Moments) -> Mechanism:
    mechanism = NOISE.plan(moments)
    return mechanism


def _population(settings: Settings) -> list[Moments]:
    """Moments of batches from where public examples begin."""
    data, net, size = dataset(settings["data"]), model(settings), settings["size"]
    generator = named_stream("studies", settings["seed"], "public plans", 0)
    found = []
    for number in range(settings["population"]):
        inputs, targets = data.batch(settings["public"] + size * number, size)
        message = GradientMessage(net, cross_entropy, targets)
        found.append(measure(message, inputs, generator=generator))
    return found


def _public(settings: Settings, kind: str, count: int) -> Mechanism:
    """The plan of `Public` with so many batches of a kind."""
    data = dataset(settings["data"])
    generator = named_stream("studies", settings["seed"], f"public plans {kind}", count)
    examples = _examples(data, kind, settings["public"], count * settings["size"], generator)
    defense = Public(NOISE, examples)
    return _planned(defense.public_moments(*_anyone(settings), generator))


def _anyone(settings: Settings) -> tuple[GradientMessage, Tensor]:
    """A message of the right shape, whose values do not matter."""
    inputs, targets = dataset(settings["data"]).batch(0, settings["size"])
    return GradientMessage(model(settings), cross_entropy, targets), inputs


def _examples(
    data: Dataset, kind: str, start: int, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    inputs, targets = data.batch(start, count)
    labels = torch.randint(data.num_classes, (count,), generator=generator)
    if kind == "noise":
        return torch.randn(inputs.shape, generator=generator), labels
    if kind == "random images":
        low, high = data.range
        return low + (high - low) * torch.rand(inputs.shape, generator=generator), labels
    if kind == "random labels":
        return inputs, labels
    if kind == "another data set":
        return _pictures(inputs, generator)
    return inputs, targets


def _pictures(like: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The embedded CIFAR-10 images in grey and in this size, each moved by some pixels."""
    pictures = dataset("cifar10")
    grey = pictures.inputs.mean(1, keepdim=True).expand(-1, like.shape[1], -1, -1)
    sized = interpolate(grey, size=like.shape[2:])
    picked = torch.randint(len(sized), (len(like),), generator=generator)
    moves = torch.randint(like.shape[-1], (len(like),), generator=generator)
    rolled = [sized[i].roll(int(m), -1) for i, m in zip(picked, moves, strict=True)]
    return torch.stack(rolled), pictures.targets[picked]


def _without_data(settings: Settings) -> dict[str, Mechanism]:
    """The plans from the model alone, and from its last updates."""
    generator = named_stream("studies", settings["seed"], "public plans", 1)
    released = Released(NOISE, refresh_every=1)
    for back in range(UPDATES, -1, -1):
        earlier = {**settings, "trained": settings["trained"] - back}
        if earlier["trained"] >= 0:
            moments = released.public_moments(*_anyone(earlier), generator)
    alone = model_moments(*_anyone(settings), generator)
    return {"model/0": _planned(alone), "released/0": _planned(moments)}

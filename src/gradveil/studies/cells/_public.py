"""Plans from public data: Theorems 2 to 4 with moments over a data set."""

import json
from functools import lru_cache

from torch import nn
from torch.nn.functional import cross_entropy

from gradveil._random import named_stream
from gradveil.catalog import DEFENSES, Spec, build_defense
from gradveil.data import Dataset
from gradveil.defenses import Defense, Public
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import GradientMessage
from gradveil.sensitivity import Moments, measure
from gradveil.studies.runner import Settings, canonical_json

from ._parts import dataset, model

MODEL = ("data", "model", "model_seed", "trained", "size")
"""Settings of an attacked model and of the batches that it sees."""


def planned_defense(settings: Settings) -> tuple[Defense, AnyMechanism | None]:
    """The defense, and a mechanism that it is to apply in place of its own plan, or `None`.

    Without `public` the defense plans for itself. With `public` as {start, size, batches} the plan
    comes from plain means over these batches, and is the mechanism. With {start, examples} the
    defense is `Public`, which shrinks what it finds on these examples as far as they demand it.
    """
    defense, public = build_defense(settings["defense"]), settings.get("public")
    if not public:
        return defense, None
    if "examples" in public:
        kept = {name: settings[name] for name in (*MODEL, "public") if name in settings}
        kind = {"defense": _at_usual_amount(settings["defense"])}
        made = from_examples(defense, dataset(settings["data"]), public)
        made.follow(_measured(canonical_json({**kept, **kind})))
        return made, None
    data, net = dataset(settings["data"]), model(settings)
    return defense, defense.plan(public_moments(net, data, public, defense.clamp))


def from_examples(
    defense: Defense, data: Dataset, public: Settings, calls_a_round: int = 1
) -> Public:
    """A defense that plans from `examples` examples from `start` on, every `refresh` rounds."""
    examples = data.batch(public["start"], public["examples"])
    return Public(defense, examples, public.get("refresh", 1) * calls_a_round)


def _at_usual_amount(text: str) -> str:
    """What is measured on public examples is the same for all amounts of a defense."""
    spec = Spec.parse(text, "defense").named()
    usual = DEFENSES[spec.name].amounts
    return str(spec.with_(**{name: usual[name] for name in spec.options if name in usual}))


@lru_cache(maxsize=8)
def _measured(text: str) -> Public:
    """What public examples show at a model, for all batches of a size; most of a plan's work."""
    settings = json.loads(text)
    data, net = dataset(settings["data"]), model(settings)
    made = from_examples(build_defense(settings["defense"]), data, settings["public"])
    inputs, targets = data.batch(settings["public"]["start"], settings["size"])
    generator = named_stream("studies", 0, "public moments", 0)
    made.public_moments(GradientMessage(net, cross_entropy, targets), inputs, generator)
    return made


def public_moments(
    model: nn.Module, data: Dataset, public: Settings, clip: float | None = None
) -> Moments:
    """E g² and E‖∇g‖² over `batches` batches of `size` examples from `start` on."""
    generator = named_stream("studies", 0, "public moments", 0)
    size = public["size"]
    return Moments.average(
        measure(
            GradientMessage(model, cross_entropy, targets), inputs, clip=clip, generator=generator
        )
        for inputs, targets in (
            data.batch(public["start"] + size * index, size) for index in range(public["batches"])
        )
    )

"""What cells compute on one model: attacks, bounds, and the worth of plans and estimators.

Settings of all: `data`, `model`, optional `model_seed` and `trained` (see `model`); of most:
`start` and `size` of the batch, `defense`, optional `public` (see `planned_defense`), `seed`. A
function names those that it has beside these.
"""

import json
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from benchmarks.cases import Case, train
from benchmarks.sensitivity import PaperAlgorithm
from gradveil._random import named_stream
from gradveil._runner import Settings, canonical_json
from gradveil._tensors import flatten
from gradveil._timing import time_ratios
from gradveil.attacks import Identify, Observation, ThreatModel, identify_trials, observe
from gradveil.catalog import Spec, build_attack, build_defense
from gradveil.data import Dataset, load_dataset
from gradveil.defenses import Defense, GradientNoise, OptimalNoise, PruningDefense, keep_within
from gradveil.mechanisms import AnyMechanism, Mechanism
from gradveil.messages import GradientMessage, LocalSteps, Message
from gradveil.models import build_model
from gradveil.scoring import score
from gradveil.sensitivity import Moments, PerExample, measure
from gradveil.shapes import (
    Evidence,
    Given,
    Needs,
    Public,
    Request,
    Shape,
    gather,
    model_given,
    shape_with,
    synthetic,
)
from gradveil.theory import (
    GaussianPrior,
    gain_over_isotropic,
    reconstruction_bound,
    share_of_optimum,
    utility,
)

DATA_VARIABLE = "GRADVEIL_DATA"
"""Names the folder of the official data sets. It is no part of a cell: settings name a data set
whose content is fixed, and the folder only says where this machine keeps it."""

OFFICIAL: dict[str, tuple[str, int, list[int]]] = {
    "mnist-test": ("", 10_000, [7, 2, 1, 0, 4, 1, 4, 9, 5, 9, 0, 6, 9, 0, 1, 5]),
    "cifar10-test": ("cifar10", 846, [3, 8, 8, 0, 6, 6, 1, 6, 3, 1, 0, 9, 5, 7, 9, 8]),
}
"""Test sets in their official files: their place below the folder, how many examples are needed,
and the first labels, by which they are told from other data in the same format."""


@lru_cache(maxsize=4)
def dataset(name: str) -> Dataset:
    """ "mnist" and "cifar10" are embedded, the others are `OFFICIAL`."""
    if name not in OFFICIAL:
        return load_dataset(name)
    (place, count, labels), given = OFFICIAL[name], os.environ.get(DATA_VARIABLE)
    folder = (Path(given) / place).resolve() if given else None
    if folder is None or not folder.is_dir() or not any(folder.iterdir()):
        found = "no folder" if folder is None else f"nothing in `{folder}`"
    else:
        data = load_dataset(folder, normalization="mnist" if name == "mnist-test" else None)
        if data.targets[: len(labels)].tolist() == labels and len(data) >= count:
            return data
        found = f"{len(data)}, first {data.targets[: len(labels)].tolist()}, in `{folder}`"
    raise FileNotFoundError(
        f"Data set `{name}` should be {count} or more examples, with first labels {labels}, in its"
        f" official files. Found {found}. Put them into FOLDER/{place}, without training files, and"
        " give `--data FOLDER`."
    )


def model(settings: Settings) -> nn.Module:
    """The model that the settings name, fresh, or after some Adam steps on batches of 64."""
    seed, trained = settings.get("model_seed", 0), settings.get("trained", 0)
    return _model(settings["model"], seed, trained, settings["data"])


@lru_cache(maxsize=4)
def _model(spec: str, seed: int, steps: int, data: str) -> nn.Module:
    made = build_model(spec, seed)
    if steps:
        train(made, dataset(data), steps)
    return made.eval()


def case_of(settings: Settings) -> Case:
    """The model and the batch."""
    batch = dataset(settings["data"]).batch(settings["start"], settings["size"])
    return Case(settings["model"], model(settings), *batch)


def planned_defense(settings: Settings) -> Defense:
    """The defense, with its plan if that comes from public data.

    Without `public` the defense plans for itself. With `public` as {start, size, batches} the plan
    comes from plain means over these batches. With {start, examples} the source is `Public`, which
    shrinks what it finds on these examples as far as they demand it.
    """
    defense, public = build_defense(settings["defense"]), settings.get("public")
    if not public:
        return defense
    data, net = dataset(settings["data"]), model(settings)
    if "examples" in public:
        made: Defense = from_examples(defense, data, public)
        inputs, targets = data.batch(public["start"], settings["size"])
        message = GradientMessage(net, cross_entropy, targets)
        asked = Request(made.needs, message.parameters, message, inputs, _public_stream())
        made.origin.given(asked)
        return made
    moments = public_moments(net, data, public, defense.about.clamp)
    return Planned(defense, defense.plan(moments))


@dataclass(frozen=True)
class Planned(Defense):
    """A mechanism that was planned before, whatever the message."""

    planner: Defense
    planned: AnyMechanism

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Nothing."""
        return Needs(moments=False, sensitivities=False)

    def given(
        self, moments: Moments, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> Given:
        """Nothing, after what the planner draws by itself: that comes before the noise.

        With a plan by the model it is what it drew when the committed cells were found.
        """
        self.planner.observe(message, inputs, generator)
        if self.planner.about.source == "model":
            synthetic(message, inputs, generator, 128)
            gather(*synthetic(message, inputs, generator, 8), generator)
        return super().given(moments, message, inputs, generator)

    def mechanism(self, shape: Shape, moments: Moments) -> AnyMechanism:
        """The same for all messages."""
        return self.planned


def from_examples(defense: Defense, data: Dataset, public: Settings, calls_a_round: int = 1) -> Any:
    """A defense that plans from `examples` examples from `start` on, every `refresh` rounds."""
    examples = data.batch(public["start"], public["examples"])
    source = Public(examples, public.get("refresh", 1) * calls_a_round)
    return replace(defense, source=source)  # type: ignore[type-var]


def _public_stream() -> torch.Generator:
    """The same for all cells: a plan from public examples is one for all batches."""
    return named_stream("studies", 0, "public moments", 0)


def batch_moments(
    model: nn.Module, data: Dataset, public: Settings, **options: Any
) -> list[Moments]:
    """E g² and E‖∇g‖² of each of `batches` batches of `size` examples from `start` on."""
    generator = options.pop("generator", None) or _public_stream()
    found = []
    for place in range(public["batches"]):
        inputs, targets = data.batch(public["start"] + place * public["size"], public["size"])
        message = GradientMessage(model, cross_entropy, targets)
        found.append(measure(message, inputs, generator=generator, **options))
    return found


def public_moments(
    model: nn.Module, data: Dataset, public: Settings, clip: float | None = None
) -> Moments:
    """Their mean over all of these batches."""
    return Moments.average(batch_moments(model, data, public, clip=clip))


def attack(settings: Settings) -> dict[str, Any]:
    """Play the client, attack what it sent, score the images.

    Settings: `attack`, `mechanism` (what the attacker knows of the defense), optional `local`
    (FedAvg's steps). Two cells that differ in the defense alone share the attacker's start.
    """
    data, local = dataset(settings["data"]), settings.get("local")
    batch = data.batch(settings["start"], settings["size"])
    (seen,) = _observations(
        settings,
        _stream(settings, "defense"),
        input_range=data.range,
        local=LocalSteps(**local) if local else None,
    )
    reconstruction = build_attack(settings["attack"])(seen, _stream(settings, "attack"))
    scores = score(reconstruction, batch, normalization=data)
    names = ("mse", "psnr", "ssim", "unmatched_mse", "unmatched_psnr", "unmatched_ssim")
    return {
        **{name: getattr(scores, name).tolist() for name in (*names, "assignment")},
        "loss": reconstruction.loss,
        "status": reconstruction.status,
        "blank_mse": batch[0].square().flatten(1).mean(1).tolist(),
        "images": data.to_pixels(reconstruction.inputs).clamp(0, 1),
        "originals": data.to_pixels(batch[0]).clamp(0, 1),
    }


def _stream(settings: Settings, name: str) -> torch.Generator:
    return named_stream("studies", settings["seed"], name, settings["start"])


def _observations(
    settings: Settings, generator: torch.Generator, count: int = 1, **told: Any
) -> list[Observation]:
    """What an attacker gets of the batch, sent so many times."""
    data, net = dataset(settings["data"]), model(settings)
    defense, given = planned_defense(settings), {"num_classes": data.num_classes, **told}
    batch = data.batch(settings["start"], settings["size"])
    threat = ThreatModel(mechanism=settings.get("mechanism", "known"))
    return [
        observe(net, cross_entropy, batch, defense, threat=threat, generator=generator, **given)
        for _ in range(count)
    ]


def identification(settings: Settings) -> dict[str, Any]:
    """Some trials with one draw of candidates and of the rest of the batch.

    Settings: `start` (the number of the draw), `examples` (the first so many are drawn from),
    `candidates`, `one_class`, `trials`.
    """
    data = dataset(settings["data"])
    report = identify_trials(
        model(settings),
        cross_entropy,
        data.batch(0, settings["examples"]),
        planned_defense(settings),
        num_classes=data.num_classes,
        batch_size=settings["size"],
        per_draw=settings["trials"],
        generator=_stream(settings, "identification"),
        **{name: settings[name] for name in ("candidates", "trials", "one_class")},
    )
    names = {"right": "is_first", "bits": "bits", "rank": "rank", "error": "error"}
    return {name: [getattr(one, own) for one in report.trials] for name, own in names.items()}


def plan_quality(settings: Settings) -> dict[str, Any]:
    """What a plan keeps of the protection that is possible on the batch, at equal utility.

    For noise it is the share of the largest trace bound at equal U2; for pruning the least
    information Σ_kept ‖∇g_i‖² that is possible at equal U1 (half of Σ g_i²), over the plan's own.
    Settings: `public` or None (the plan is made from the batch itself), `probes` of the reference.
    """
    case, generator = case_of(settings), _stream(settings, "probes")
    defense = build_defense(settings["defense"])
    moments = defense.observe(case.message, case.inputs, generator)[1]
    if settings["public"] and defense.about.needs.sensitivities:
        data, clip = dataset(settings["data"]), defense.about.clamp
        moments = public_moments(case.model, data, settings["public"], clip)
    return {"share": _share(defense, moments, _exact(case, settings["probes"], generator))}


def _exact(case: Case, probes: int, generator: torch.Generator) -> Moments:
    """With sensitivities that are next to exact."""
    return measure(case.message, case.inputs, PerExample(probes), generator=generator)


def _share(defense: Defense, moments: Moments, exact: Moments) -> float:
    if isinstance(defense, PruningDefense):
        squares, slopes = exact.squared_values, exact.known_squared_sensitivities
        ideal = flatten(slopes) / flatten(squares).clamp(min=1e-12)
        scores = defense.scores(defense.shape(moments), moments)
        return _revealed(ideal, exact) / _revealed(scores, exact)
    mechanism = defense.plan(moments)
    assert isinstance(mechanism, Mechanism)
    return share_of_optimum(exact, mechanism)


def _revealed(scores: Tensor, exact: Moments) -> float:
    """Σ_kept ‖∇g_i‖² when the lowest scores are kept until half of Σ g_i² is."""
    squares, slopes = flatten(exact.squared_values), flatten(exact.known_squared_sensitivities)
    kept = keep_within(scores, squares, float(squares.double().sum()) / 2)
    return float((kept * slopes).double().sum())


def noise_of(settings: Settings) -> GradientNoise | OptimalNoise:
    """The noise that is planned with the estimator."""
    name = settings["estimator"]
    if name == "isotropic":  # not an estimator: the same noise everywhere
        return GradientNoise(1.0)
    if name == "layers":  # one optimal level for each tensor
        return OptimalNoise(1.0, cap=1e6, granularity="layer", source="private")
    # the paper's way to sensitivities is slow on purpose, and not in the catalog
    named: dict[str, Any] = {"paper(probes=10)": PaperAlgorithm(), "auto": "auto"}
    estimator = named.get(name) or Spec.parse(name).build("estimator")
    return OptimalNoise(1.0, cap=1e6, estimator=estimator, source="private")


def estimator_share(settings: Settings) -> dict[str, Any]:
    """The share of the largest bound at equal utility that a plan from the estimate reaches.

    Settings: `estimator` in place of `defense`, `reference_probes` (for each example, in place of
    exact sensitivities).
    """
    mechanism = _noise(noise_of(settings), case_of(settings), _stream(settings, "probes"))
    kept = {key: value for key, value in settings.items() if key not in ("estimator", "seed")}
    return {"share": share_of_optimum(_reference(canonical_json(kept)), mechanism)}


def _noise(defense: Defense, case: Case, generator: torch.Generator) -> Mechanism:
    mechanism = defense.respond(case.message, case.inputs, generator).mechanism
    assert isinstance(mechanism, Mechanism)
    return mechanism


@lru_cache(maxsize=32)
def _reference(text: str) -> Moments:
    """What stands for the exact sensitivities; most of the work, and the same for all estimators.

    It does not depend on what was computed before, so a cell's result does not either.
    """
    settings = json.loads(text)
    return case_of(settings).reference(settings["reference_probes"])


def estimator_cost(settings: Settings) -> dict[str, Any]:
    """The time of a defended gradient over that of a plain one, the median of `repeats`.

    A measurement of time: the one kind of cell whose result is not the same in every run.
    Settings: `estimator` in place of `defense`, `repeats`; no `seed`.
    """
    case, defense = case_of(settings), noise_of(settings)
    generator = named_stream("studies", 0, "probes", 0)
    jobs = {"defense": lambda: defense(case.message, case.inputs, generator)}
    return {"ratio": time_ratios(case.plain_gradient, jobs, settings["repeats"])["defense"]}


def layer_sizes(settings: Settings) -> dict[str, Any]:
    """The number of entries of each parameter of the model."""
    return {"sizes": [[name, p.numel()] for name, p in model(settings).named_parameters()]}


NAIVE = {
    "entry-wise": (1.0, 1.0, 1.0, 1.0),
    "rows x columns": (1.0, 1.0, 1.0, 0.0),
    "layer": (1.0, 0.0, 0.0, 0.0),
}
"""Theorem 2 with plain means over public batches, at three grains."""

STRANGE = ("noise", "random images", "random labels", "another data set")
"""Kinds of public examples that are not those of the task."""

NOISE = OptimalNoise(1.0)


def public_plans(settings: Settings) -> dict[str, Any]:
    """Gains of the trace bound at equal U2 on one private batch, by plan, as "plan/batches".

    Settings: `probes` of the private batch's sensitivities, `public`, where public examples begin,
    `counts` of public batches, `population`, the number of batches that stand for it, `strange`,
    the number of public batches of another kind.
    """
    case, generator = case_of(settings), _stream(settings, "probes")
    exact = _exact(case, settings["probes"], generator)
    shared = {n: v for n, v in settings.items() if n not in ("start", "probes")}
    own = _noise(OptimalNoise(1.0, source="private"), case, generator)
    plans = {"private/0": own, **_plans(canonical_json(shared))}
    return {"gains": {name: gain_over_isotropic(exact, plan) for name, plan in plans.items()}}


@lru_cache(maxsize=2)
def _plans(text: str) -> dict[str, Mechanism]:
    """Every plan that is no function of the private batch."""
    settings = json.loads(text)
    size, seed, strange = settings["size"], settings["seed"], settings["strange"]
    population = {"start": settings["public"], "size": size, "batches": settings["population"]}
    generator = named_stream("studies", seed, "public plans", 0)
    data, net = dataset(settings["data"]), model(settings)
    moments = batch_moments(net, data, population, generator=generator)
    plans: dict[str, Mechanism] = {"limit/0": NOISE.plan(Moments.average(moments))}
    for count in settings["counts"]:
        mean = Evidence(Moments.average(moments[:count]))
        for name, exponents in NAIVE.items():
            shape = shape_with([mean], size, exponents)
            plans[f"{name}/{count}"] = NOISE.mechanism(shape, mean.moments)
        plans[f"shrunk/{count}"] = _public(settings, "", count)
    for kind in STRANGE if strange else ():
        plans[f"shrunk, {kind}/{strange}"] = _public(settings, kind, strange)
    given = model_given(*_anyone(settings), named_stream("studies", seed, "public plans", 1))
    return {**plans, "model/0": NOISE.mechanism(given.shape, given.moments)}


def _public(settings: Settings, kind: str, count: int) -> Mechanism:
    """The plan of `Public` with so many batches of a kind."""
    data = dataset(settings["data"])
    generator = named_stream("studies", settings["seed"], f"public plans {kind}", count)
    examples = _examples(data, kind, settings["public"], count * settings["size"], generator)
    message, inputs = _anyone(settings)
    asked = Request(NOISE.needs, message.parameters, message, inputs, generator)
    given = Public(examples).given(asked)
    return NOISE.mechanism(given.shape, given.moments)


def _anyone(settings: Settings) -> tuple[GradientMessage, Tensor]:
    """A message of the right shape, whose values do not matter."""
    case = case_of({**settings, "start": 0})
    return GradientMessage(case.model, cross_entropy, case.targets), case.inputs


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


def bound(settings: Settings) -> dict[str, Any]:
    """The full Bayesian Cramér-Rao bound for one entry, and the utilities.

    The prior is a Gaussian fitted to the last `prior_samples` examples. With `public` the plan is
    made from other data, and the bound holds as it stands; a plan made from the batch reveals more
    than the bound counts.
    """
    case, generator = case_of(settings), _stream(settings, "bound")
    defense = planned_defense(settings)
    values, moments = defense.observe(case.message, case.inputs, generator)
    mechanism = defense.made(defense.given(moments, case.message, case.inputs, generator))
    prior = _prior(settings["data"], settings["prior_samples"])
    found = reconstruction_bound(case.message, case.inputs, mechanism, prior, generator=generator)
    first, second = utility(values, mechanism)
    return {
        "bound": found.per_entry,
        "standard_error": found.standard_error / case.inputs.numel(),
        "prior": found.prior,
        "prior_variance": float(prior.covariance.diagonal().mean()),
        "utility_first": first,
        "utility_second": second,
    }


@lru_cache(maxsize=2)
def _prior(name: str, samples: int) -> GaussianPrior:
    return GaussianPrior.fit(dataset(name).inputs[-samples:], ridge=0.01)  # it widens the prior


def candidate_bound(settings: Settings) -> dict[str, Any]:
    """The error per entry of the posterior's mean over candidates, one image being the truth.

    The other candidates are of the image's class and drawn from a population that has neither it
    nor the plan's examples. In the mean over images no attacker's error is smaller
    (`gradveil.attacks.identify_trials`): whoever is told more can ignore it. Settings:
    `candidates`, `population` (`start`, `count`), `trials` (draws of the noise); `size` is 1.
    """
    data, generator = dataset(settings["data"]), _stream(settings, "candidates")
    truth = data.batch(settings["start"], 1)
    candidates = _candidates(settings, data, truth, generator)
    messages = _observations({**settings, "size": 1}, generator, settings["trials"])
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
        raise ValueError(f"{len(alike)} are of that class: ask for fewer candidates.")
    chosen = alike[torch.randperm(len(alike), generator=generator)[:needed]]
    return torch.cat([truth[0], inputs[chosen]]), torch.cat([truth[1], targets[chosen]])

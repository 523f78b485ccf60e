"""What cells compute on one model: attacks, bounds, and the worth of plans and estimators."""

import json
import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from benchmarks.cases import Case, train
from benchmarks.paper_algorithm import PaperAlgorithm
from gradveil._random import named_stream
from gradveil._runner import Settings, canonical_json
from gradveil._tensors import flatten
from gradveil._timing import time_ratios
from gradveil.attacks import (
    Identify,
    Observation,
    ThreatModel,
    identify_trials,
    observe,
)
from gradveil.catalog import DEFENSES, Spec, build_attack, build_defense, build_estimator
from gradveil.data import Dataset, load_dataset
from gradveil.defenses import (
    Defense,
    GradientNoise,
    OptimalNoise,
    PruningDefense,
    keep_within,
)
from gradveil.denoising import LearnedPriors
from gradveil.mechanisms import AnyMechanism, Mechanism
from gradveil.messages import GradientMessage, LocalSteps
from gradveil.models import build_model
from gradveil.scoring import score
from gradveil.sensitivity import Moments, PerExample, measure
from gradveil.shapes import Evidence, Public, model_given, shape_with
from gradveil.theory import (
    BoundCase,
    GaussianPrior,
    gain_over_isotropic,
    mean_bound,
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
    return _model(
        settings["model"],
        settings.get("model_seed", 0),
        settings.get("trained", 0),
        settings["data"],
    )


@lru_cache(maxsize=4)
def _model(spec: str, seed: int, steps: int, data: str) -> nn.Module:
    made = build_model(spec, seed)
    if steps:
        train(made, dataset(data), steps)
    return made.eval()


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
        made.source.follow(_measured(canonical_json({**kept, **kind})).source)
        return made, None
    data, net = dataset(settings["data"]), model(settings)
    return defense, defense.plan(public_moments(net, data, public, defense.about.clamp))


def from_examples(defense: Defense, data: Dataset, public: Settings, calls_a_round: int = 1) -> Any:
    """A defense that plans from `examples` examples from `start` on, every `refresh` rounds."""
    examples = data.batch(public["start"], public["examples"])
    source = Public(examples, public.get("refresh", 1) * calls_a_round)
    return replace(defense, source=source)  # type: ignore[type-var]


def _at_usual_amount(text: str) -> str:
    """What is measured on public examples is the same for all amounts of a defense."""
    spec = Spec.parse(text, "defense").named()
    usual = DEFENSES[spec.name].amounts
    return str(spec.with_(**{name: usual[name] for name in spec.options if name in usual}))


@lru_cache(maxsize=8)
def _measured(text: str) -> Any:
    """What public examples show at a model, for all batches of a size; most of a plan's work."""
    settings = json.loads(text)
    data, net = dataset(settings["data"]), model(settings)
    made = from_examples(build_defense(settings["defense"]), data, settings["public"])
    inputs, targets = data.batch(settings["public"]["start"], settings["size"])
    generator = named_stream("studies", 0, "public moments", 0)
    message = GradientMessage(net, cross_entropy, targets)
    made.source.given(made.needs, message.parameters, message, inputs, generator)
    return made


def batch_moments(
    model: nn.Module, data: Dataset, public: Settings, **options: Any
) -> list[Moments]:
    """E g² and E‖∇g‖² of each of `batches` batches of `size` examples from `start` on."""
    generator = options.pop("generator", None) or named_stream("studies", 0, "public moments", 0)
    size = public["size"]
    starts = range(public["start"], public["start"] + size * public["batches"], size)
    batches = (data.batch(start, size) for start in starts)
    return [
        measure(
            GradientMessage(model, cross_entropy, targets), inputs, generator=generator, **options
        )
        for inputs, targets in batches
    ]


def public_moments(
    model: nn.Module, data: Dataset, public: Settings, clip: float | None = None
) -> Moments:
    """Their mean over all of these batches."""
    return Moments.average(batch_moments(model, data, public, clip=clip))


def attack(settings: Settings) -> dict[str, Any]:
    """Play the client, attack what it sent, score the images.

    Settings: `data`, `model`, `start` and `size` of the batch, `defense`, `attack`, `mechanism`
    (what the attacker knows of the defense), `seed`; optional `model_seed`, `trained`, `local`
    (FedAvg's steps) and `public` (the plan is made from other data, see `planned_defense`). Two
    cells that differ in the defense alone share the attacker's starting point.
    """
    data, net, seed = dataset(settings["data"]), model(settings), settings["seed"]
    batch = data.batch(settings["start"], settings["size"])
    seen = _observation(settings, data, net, batch)
    reconstruction = build_attack(settings["attack"])(
        seen, named_stream("studies", seed, "attack", settings["start"])
    )
    scores = score(reconstruction, batch, normalization=data)
    names = ("mse", "psnr", "ssim", "unmatched_mse", "unmatched_psnr", "unmatched_ssim")
    tensors = {name: getattr(scores, name) for name in (*names, "assignment")}
    return {
        **{name: value.tolist() for name, value in tensors.items() if value is not None},
        "loss": reconstruction.loss,
        "status": reconstruction.status,
        "history": [[*row] for row in reconstruction.history],
        "blank_mse": batch[0].square().flatten(1).mean(1).tolist(),
        "images": data.to_pixels(reconstruction.inputs).clamp(0, 1),
        "originals": data.to_pixels(batch[0]).clamp(0, 1),
    }


def _observation(
    settings: Settings, data: Dataset, net: nn.Module, batch: tuple[Tensor, Tensor]
) -> Observation:
    defense, mechanism = planned_defense(settings)
    local = settings.get("local")
    return observe(
        net,
        cross_entropy,
        batch,
        defense,
        threat=ThreatModel(mechanism=settings["mechanism"]),
        num_classes=data.num_classes,
        input_range=data.range,
        local=LocalSteps(**local) if local else None,
        public_mechanism=mechanism,
        generator=named_stream("studies", settings["seed"], "defense", settings["start"]),
    )


def identification(settings: Settings) -> dict[str, Any]:
    """Some trials with one draw of candidates and of the rest of the batch.

    Settings: `data`, `model`, `start` (the number of the draw), `size` of the batch, `examples`
    (the first so many are drawn from), `candidates`, `one_class`, `trials`, `defense`, `public` or
    None (see `planned_defense`), `seed`; optional `model_seed`, `trained`.
    """
    data, net = dataset(settings["data"]), model(settings)
    defense, mechanism = planned_defense(settings)
    report = identify_trials(
        net,
        cross_entropy,
        data.batch(0, settings["examples"]),
        defense,
        num_classes=data.num_classes,
        candidates=settings["candidates"],
        batch_size=settings["size"],
        trials=settings["trials"],
        per_draw=settings["trials"],
        one_class=settings["one_class"],
        public_mechanism=mechanism,
        generator=named_stream("studies", settings["seed"], "identification", settings["start"]),
    )
    return {
        "right": [bool(trial.is_first) for trial in report.trials],
        "bits": [trial.bits for trial in report.trials],
        "rank": [trial.rank for trial in report.trials],
        "error": [trial.error for trial in report.trials],
    }


def plan_quality(settings: Settings) -> dict[str, Any]:
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
    clip = defense.about.clamp
    if settings["public"] and defense.about.needs.sensitivities:
        moments = public_moments(net, data, settings["public"], clip)
    exact = measure(message, inputs, PerExample(settings["probes"]), generator=generator)
    return {"share": _share(defense, moments, exact)}


def _share(defense: Defense, moments: Moments, exact: Moments) -> float:
    if isinstance(defense, PruningDefense):
        ideal = flatten(exact.known_squared_sensitivities) / flatten(exact.squared_values).clamp(
            min=1e-12
        )
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


PAPER = "paper(probes=10)"
"""The paper's way to sensitivities, slow on purpose."""


def case_of(settings: Settings) -> Case:
    """The model and the batch."""
    batch = dataset(settings["data"]).batch(settings["start"], settings["size"])
    return Case(settings["model"], model(settings), *batch)


def noise_of(settings: Settings) -> GradientNoise | OptimalNoise:
    """The noise that is planned with the estimator."""
    name = settings["estimator"]
    if name == "isotropic":  # not an estimator: the same noise everywhere
        return GradientNoise(1.0)
    if name == "layers":  # one optimal level for each tensor
        return OptimalNoise(1.0, cap=1e6, granularity="layer", source="private")
    estimator = PaperAlgorithm() if name == PAPER else build_estimator(name)
    return OptimalNoise(1.0, cap=1e6, estimator=estimator, source="private")


def estimator_share(settings: Settings) -> dict[str, Any]:
    """The share of the largest bound at equal utility that a plan from the estimate reaches.

    Settings: `data`, `model`, `start`, `size`, `estimator`, `reference_probes` (for each example,
    in place of exact sensitivities), `seed`; optional `model_seed`, `trained`.
    """
    case, defense = case_of(settings), noise_of(settings)
    generator = named_stream("studies", settings["seed"], "probes", settings["start"])
    mechanism = defense.respond(case.message, case.inputs, generator).mechanism
    assert isinstance(mechanism, Mechanism)
    kept = {key: value for key, value in settings.items() if key not in ("estimator", "seed")}
    return {"share": share_of_optimum(_reference(canonical_json(kept)), mechanism)}


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
    Settings: `data`, `model`, `start`, `size`, `estimator`, `repeats`; optional `model_seed`,
    `trained`.
    """
    case, defense = case_of(settings), noise_of(settings)
    generator = named_stream("studies", 0, "probes", 0)
    jobs = {"defense": lambda: defense(case.message, case.inputs, generator)}
    return {"ratio": time_ratios(case.plain_gradient, jobs, settings["repeats"])["defense"]}


def layer_sizes(settings: Settings) -> dict[str, Any]:
    """The number of entries of each parameter of a `model` (for `data`)."""
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
    plans = _plans(
        canonical_json({n: v for n, v in settings.items() if n not in ("start", "probes")})
    )
    gains: dict[str, float] = {
        name: gain_over_isotropic(exact, mechanism) for name, mechanism in plans.items()
    }
    own = OptimalNoise(1.0, source="private").respond(message, inputs, generator).mechanism
    assert isinstance(own, Mechanism)
    return {"gains": {"private/0": gain_over_isotropic(exact, own), **gains}}


@lru_cache(maxsize=2)
def _plans(text: str) -> dict[str, Mechanism]:
    """Every plan that is no function of the private batch."""
    settings = json.loads(text)
    population = {
        "start": settings["public"], "size": settings["size"], "batches": settings["population"]
    }  # fmt: skip
    generator = named_stream("studies", settings["seed"], "public plans", 0)
    data, net = dataset(settings["data"]), model(settings)
    moments = batch_moments(net, data, population, generator=generator)
    plans: dict[str, Mechanism] = {"limit/0": NOISE.plan(Moments.average(moments))}
    for count in settings["counts"]:
        mean = Evidence(Moments.average(moments[:count]))
        for name, exponents in NAIVE.items():
            shape = shape_with([mean], settings["size"], exponents)
            plans[f"{name}/{count}"] = NOISE.mechanism(shape, mean.moments)
        plans[f"shrunk/{count}"] = _public(settings, "", count)
    for kind in STRANGE if settings["strange"] else ():
        plans[f"shrunk, {kind}/{settings['strange']}"] = _public(
            settings, kind, settings["strange"]
        )
    generator = named_stream("studies", settings["seed"], "public plans", 1)
    given = model_given(*_anyone(settings), generator)
    return {**plans, "model/0": NOISE.mechanism(given.shape, given.moments)}


def _public(settings: Settings, kind: str, count: int) -> Mechanism:
    """The plan of `Public` with so many batches of a kind."""
    data = dataset(settings["data"])
    generator = named_stream("studies", settings["seed"], f"public plans {kind}", count)
    examples = _examples(data, kind, settings["public"], count * settings["size"], generator)
    message, inputs = _anyone(settings)
    given = Public(examples).given(NOISE.needs, message.parameters, message, inputs, generator)
    return NOISE.mechanism(given.shape, given.moments)


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


def bound(settings: Settings) -> dict[str, Any]:
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
        moments = public_moments(net, data, public, defense.about.clamp)
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
    return GaussianPrior.fit(dataset(name).inputs[-samples:], ridge=0.01)  # it widens the prior


def candidate_bound(settings: Settings) -> dict[str, Any]:
    """The error per entry of the posterior's mean over candidates, one image being the truth.

    The other candidates are of the image's class and drawn from a population that has neither it
    nor the plan's examples. In the mean over images no attacker's error is smaller
    (`gradveil.attacks.identify_trials`): whoever is told more can ignore it. Settings: `data`,
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


def learned_bound(settings: Settings) -> dict[str, Any]:
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
    found: dict[str, Any] = {}
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
        mechanism = defense.plan(public_moments(net, data, public, defense.about.clamp))
    cases = []
    for start in range(settings["start"], settings["start"] + settings["batches"]):
        inputs, targets = data.batch(start, 1)
        message = GradientMessage(net, cross_entropy, targets)
        if mechanism is None:
            generator = named_stream("studies", settings["seed"], "defense", start)
            mechanism = defense.plan(defense.observe(message, inputs, generator)[1])
        cases.append(BoundCase(message, inputs, mechanism))
    return cases

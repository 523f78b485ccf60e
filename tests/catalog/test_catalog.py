import inspect

import pytest
import torch

import gradveil
from gradveil.attacks import Adaptive, InvertingGradients, TotalVariation
from gradveil.attacks._refine import Finish
from gradveil.catalog import (
    ATTACKS,
    DEFENSES,
    ESTIMATORS,
    Spec,
    build_attack,
    build_defense,
    spec_of,
)
from gradveil.sensitivity import Sketch


@pytest.mark.parametrize(
    "defense",
    [
        gradveil.NoDefense(),
        gradveil.GradientNoise(0.05),
        gradveil.OptimalNoise(utility_budget=1e-3, cap=10.0, estimator=Sketch(probes=3)),
        gradveil.ClampedNoise(0.1, clip=2.0),
        gradveil.OptimalPruning(0.9, noise=gradveil.OptimalNoise(0.01)),
        gradveil.OptimalNoise(0.1, granularity="layer"),
    ],
)
def test_a_defense_comes_back_from_its_own_specification(defense) -> None:
    assert build_defense(spec_of(defense)) == defense


def test_a_source_is_a_specification_of_its_own() -> None:
    built = build_defense("optimal-noise(scale=1e-1, source=model-source(refresh_every=7))")
    assert (built.scale, built.source.refresh_every) == (0.1, 7)
    assert repr(build_defense(spec_of(built))) == repr(built)


@pytest.mark.parametrize(
    "attack",
    [
        InvertingGradients(steps=3, restarts=2),
        InvertingGradients.strong(restarts=1),
        Adaptive(unaware=InvertingGradients(steps=7), prior=TotalVariation(0.5), finish=Finish()),
    ],
)
def test_an_attack_comes_back_from_its_own_specification(attack) -> None:
    assert build_attack(spec_of(attack)) == attack


def test_presets_take_changes() -> None:
    assert build_attack("paper(steps=10)") == InvertingGradients.paper(steps=10)
    assert build_attack("strong(restarts=5)") == InvertingGradients.strong(restarts=5)


def test_every_entry_has_a_summary_and_a_class_that_can_be_named() -> None:
    for entry in (*DEFENSES.values(), *ATTACKS.values(), *ESTIMATORS.values()):
        assert entry.summary.endswith(".")
        assert callable(entry.build)


def test_every_exported_defense_is_listed() -> None:
    classes = {
        value
        for value in vars(gradveil.defenses).values()
        if isinstance(value, type)
        and issubclass(value, gradveil.Defense)
        and value is not gradveil.Defense
        and not inspect.isabstract(value)
    }
    assert classes == {entry.build for entry in DEFENSES.values()}


def test_estimators() -> None:
    assert Spec.parse("sketch(probes=4)").build("estimator") == Sketch(probes=4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("optimal-nois(scale=1)", "Did you mean `optimal-noise`"),
        ("optimal-noise", "Exactly one"),
        ("optimal-noise(scal=1)", "scal"),
        ("optimal-noise(scale=1", "should read"),
        ("optimal-noise(scale=1+)", "plain values"),
        ("optimal-noise(scale=open(file='x'))", "A part should be one of .* Found `open`"),
        ("optimal-noise(scale=__import__(name='os').system('true'))", "plain values"),
        ("optimal-noise(scale=-1)", "at least 0"),
        ("inverting-gradients", "A defense should be one of .* Found `inverting-gradients`"),
        ("no_such.module:Thing", "importable"),
        ("math:pi", "subclass of `gradveil.Defense`"),
        ("math:sqrt(x=4)", "subclass"),
        ("", "should read"),
    ],
)
def test_a_bad_defense_gets_a_clear_error(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        build_defense(spec, allow_imports=True)


def test_a_users_own_class_is_imported() -> None:
    text = "gradveil.defenses:OptimalNoise(scale=1.0)"
    for allowed in (True, ["gradveil.defenses:OptimalNoise"]):
        assert build_defense(text, allow_imports=allowed) == gradveil.OptimalNoise(1.0)


def test_a_prior_is_named_where_it_has_no_specification() -> None:
    prior = gradveil.GaussianPrior.fit(torch.eye(3))
    defense = gradveil.OptimalNoise(target_error=0.1, prior=prior)
    assert spec_of(defense) == (
        "optimal-noise(target_error=0.1, prior=<Gaussian fitted to 3 samples>)"
    )


def test_the_papers_name_is_another_spelling() -> None:
    assert Spec.parse("dpsgd(0.1, clip=1)") == Spec("clamped-noise", {"scale": 0.1, "clip": 1})
    built = build_defense("optimal-dpsgd(scale=0.1, clip=1.0)")
    assert built == build_defense("optimal-clamped-noise(scale=0.1, clip=1.0)")

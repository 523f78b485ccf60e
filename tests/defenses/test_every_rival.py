"""What must hold for all of them: names, the attacks that know them, a row in the audit."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import Defense, LocalUpdateMessage
from gradveil.attacks import Adaptive, Identify, InvertingGradients, ThreatModel, observe
from gradveil.catalog import DEFENSES, build_defense, spec_of
from tests.audit.small import attacks as quick_attacks
from tests.audit.small import image_model, small_audit
from tests.audit.small import images as audited_images

from .small_rivals import LABELS, RIVALS, gradient, images, model, seeded

every = pytest.mark.parametrize("spec", RIVALS)
KNOWN = ThreatModel(mechanism="known")


@every
def test_it_comes_back_from_its_own_specification(spec: str) -> None:
    made = RIVALS[spec]()
    assert spec_of(made) == spec
    assert repr(build_defense(spec)) == repr(made)
    assert DEFENSES[spec.partition("(")[0]].build is type(made)


@every
def test_names_shapes_and_types_are_those_of_the_message(spec: str) -> None:
    message = gradient()
    sent = RIVALS[spec]()(message, images(), seeded())
    plain = message(images())
    assert {k: (v.shape, v.dtype) for k, v in sent.items()} == {
        k: (v.shape, v.dtype) for k, v in plain.items()
    }
    assert not all(torch.equal(sent[name], plain[name]) for name in sent)


@every
def test_updates_of_local_steps_are_defended_too(spec: str) -> None:
    update = LocalUpdateMessage(model(), cross_entropy, LABELS, lr=0.1, steps=2)
    sent = RIVALS[spec]()(update, images(), seeded())
    assert sent.keys() == update(images()).keys()
    assert all(bool(value.isfinite().all()) for value in sent.values())


@every
def test_the_exact_attacker_sees_who_it_was(spec: str) -> None:
    candidates, rest = images(8), images(3, seed=1)
    labels = torch.zeros(8, dtype=torch.long)
    batch = torch.cat([candidates[5:6], rest]), LABELS
    observation = observe(
        model(), cross_entropy, batch, RIVALS[spec](), threat=KNOWN, num_classes=3,
        generator=seeded(2),
    )  # fmt: skip
    found = Identify((candidates, labels), (rest, LABELS[1:]))(observation, seeded(3))
    assert found.best == 5
    assert float(found.posterior[5]) > 0.99


@every
def test_the_attack_that_knows_it_runs(spec: str) -> None:
    observation = observe(
        model(), cross_entropy, (images(), LABELS), RIVALS[spec](), threat=KNOWN,
        num_classes=3, generator=seeded(2),
    )  # fmt: skip
    attack = Adaptive(InvertingGradients(3), finish=None)
    found = attack(observation, seeded())
    assert bool(found.inputs.isfinite().all())
    assert found.status == "finished"


@every
def test_a_user_who_changes_how_it_steps_has_a_private_plan(spec: str) -> None:
    kind = type(RIVALS[spec]())

    class Own(kind):  # type: ignore[misc, valid-type]
        def observe(self, *given):  # type: ignore[no-untyped-def]
            return super().observe(*given)

    own: Defense = Own(**vars_of(spec))
    assert own.about.private


def vars_of(spec: str) -> dict[str, float]:
    _, _, options = spec.rstrip(")").partition("(")
    pairs = (option.split("=") for option in options.split(", ") if option)
    return {name: float(value) if "." in value else int(value) for name, value in pairs}


def assert_rows(specs: list[str]) -> None:
    result = small_audit(audited_images(), image_model(), defenses=specs, attacks=quick_attacks(2))
    rows = result.defenses[1:]
    assert [row.defense for row in rows] == specs
    assert not any("left out" in note for note in result.notes), result.notes
    for row in rows:
        assert len(row.attacks) == 2, row.name
        assert row.told_apart is not None
        assert row.utility_first is not None
        has_noise = row.defense.startswith("laplace")
        assert (row.bound is not None) == has_noise
        assert (row.layers[0].noise > 0) == (has_noise or "outpost" in row.defense)


@pytest.mark.slow
def test_they_are_rows_of_an_audit() -> None:
    assert_rows(["laplace-noise(scale=0.01)", "mix-up(weight=0.8)"])


@pytest.mark.slow
def test_all_of_them_are_rows_of_an_audit() -> None:
    assert_rows(list(RIVALS))

"""The audit from Python: complete, reproducible, and clear about mistakes."""

import dataclasses
import json
from datetime import date

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gradveil
from gradveil import GradientNoise
from gradveil.attacks import Analytic, Attack, InvertingGradients, ThreatModel
from gradveil.audit import AuditResult, Federation, Subject, run, write_results
from gradveil.audit.measure import Laboratory
from gradveil.audit.measure._bounds import guarantee_of
from gradveil.audit.report import csv_text
from gradveil.catalog import spec_of
from gradveil.messages import LocalSteps
from tests.audit.small import audit

from .small import image_model, images, make_subject, small_audit, table, table_model


@pytest.fixture(scope="module")
def result() -> AuditResult:
    """All default defenses on two batches of images."""
    return small_audit(images(), image_model(), private=4, batches=2, training=True)


def found(result: AuditResult, name: str):
    return next(one for one in result.defenses if one.name == name)


def test_everything_is_reported(result):
    assert len(result.defenses) == 9
    assert result.stopped is None
    for defense in result.defenses:
        assert 0 < defense.utility_first <= 1 + 1e-6
        assert defense.time_ratio > 0
        assert defense.loss.low <= defense.loss.high
        assert [len(one.runs) for one in defense.attacks] == [2, 2]
        assert [one.knows_defense for one in defense.attacks] == [False, True]
        assert defense.attacks[0].psnr is not None
        assert defense.attacks[0].label_accuracy == 1.0
        assert [len(run.pictures) for run in defense.attacks[0].runs] == [2, 0]
        assert sum(layer.size for layer in defense.layers) == result.setup.parameters
    assert len(result.originals) == 2


def test_what_is_deterministic_has_no_guarantee_and_noise_has_a_bound_with_a_prior(result):
    for name in ("no defense", "pruning", "optimal pruning"):
        assert found(result, name).bound is None
        assert found(result, name).formal_privacy.startswith("none")
    for name in ("noise", "optimal noise", "noise with clamping", "optimal noise with clamping"):
        bound = found(result, name).bound
        assert bound.mse >= bound.trace_mse > 0
        assert bound.prior == "Gaussian within classes fitted to 20 other examples"
        assert not bound.counts_plan
        assert found(result, name).formal_privacy.startswith("no (ε, δ)")
    assert any("tell who was in it" in note for note in result.notes)  # magnitude pruning does


def test_optimal_noise_from_public_examples_does_not_lose_to_its_classical_twin(result):
    """Ten batches of two examples say little: what counts is that a plan from them costs little."""
    for name in ("noise", "noise with clamping", "noisy pruning"):
        classical, optimal = found(result, name), found(result, f"optimal {name}")
        assert optimal.utility_second == pytest.approx(classical.utility_second, rel=0.05)
        if name != "noisy pruning":
            assert optimal.bound.trace_mse > 0.98 * classical.bound.trace_mse, name


def test_a_visible_choice_of_entries_has_no_bound(result):
    """Noisy pruning showed the best bounds of all; the mask alone goes far below them."""
    private = found(result, "noisy pruning")
    assert private.plan == "private"
    assert private.bound is None
    assert "pruned or clamped can be seen" in private.no_guarantee
    assert "pruned or clamped can be seen" in private.verdict
    public = found(result, "optimal noisy pruning")
    assert public.plan == "public"
    assert public.bound is not None


def test_a_private_plan_is_named_and_its_bound_counts_it():
    """The plan is a fingerprint: the attacker who reads it knows the example at any noise."""
    result = small_audit(
        images(),
        image_model(),
        defenses=[
            "gradient-noise(scale=0.01)",
            "optimal-noise(scale=0.01)",
            "optimal-noise(scale=0.01, source='private')",
        ],
        attacks=[],
        training=False,
    )
    _, noise, public, private = result.defenses
    assert (noise.plan, public.plan, private.plan) == ("", "public", "private")
    assert private.name == "optimal noise (private plan)"
    assert private.bound.counts_plan
    assert not public.bound.counts_plan
    assert private.bound.trace_mse < 0.5 * public.bound.trace_mse
    assert any("tell who was in it" in note for note in result.notes)


def test_bounds_average_over_batches_of_public_examples(result):
    bound = found(result, "noise").bound
    assert bound.batches == 8


def test_without_public_examples_the_private_batches_stand_for_them():
    alone = audit(
        image_model(),
        cross_entropy,
        tuple(part[:4] for part in images()),
        ["gradient-noise(0.01)"],
        [],
        batches=2,
        training=False,
    )
    bound = alone.defenses[1].bound
    assert bound.batches == 2


def test_the_setup_says_when_and_on_what_weights(result):
    assert result.setup.weights == "as given"
    assert date.fromisoformat(result.setup.date) <= date.today()
    assert result.setup.versions["gradveil"] == gradveil.__version__


def test_pruned_entries_are_not_sent(result):
    assert found(result, "no defense").bytes_sent == 4 * result.setup.parameters
    assert found(result, "pruning").bytes_sent < found(result, "no defense").bytes_sent


def test_json_and_back(result):
    assert AuditResult.from_json(result.to_json()) == result


def test_files_hold_the_same_numbers(result, tmp_path):
    pytest.importorskip("jinja2")
    write_results(result, tmp_path / "out")
    assert AuditResult.from_json((tmp_path / "out" / "results.json").read_text()) == result
    lines = (tmp_path / "out" / "results.csv").read_text().splitlines()
    assert len(lines) == 1 + 9 * 2
    assert repr(result.defenses[1].attacks[0].mse.mean) in lines[3]
    images = sorted(path.name for path in (tmp_path / "out" / "images").iterdir())
    assert len(images) == 2 + 9 * 2 * 2
    assert (tmp_path / "out" / "images" / images[0]).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000


def test_same_seed_same_result_apart_from_timings(global_rng_watch):
    options = {"defenses": ["optimal-noise(0.1)"], "training": True, "training_rounds": 2}
    first, again = (small_audit(images(), image_model(), **options) for _ in range(2))
    other = small_audit(images(), image_model(), **options, seed=1)
    assert without_timings(first) == without_timings(again)
    assert without_timings(first) != without_timings(other)


def without_timings(result: AuditResult) -> object:
    def strip(value):
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in ("seconds", "time_ratio")}
        return [strip(v) for v in value] if isinstance(value, list) else value

    return strip(json.loads(result.to_json()))


def test_tables_have_no_psnr_and_no_pictures():
    result = small_audit(table(), table_model(), defenses=["no-defense", "gradient-noise(0.1)"])
    assert not result.setup.is_image
    attack = result.defenses[1].attacks[0]
    assert attack.psnr is attack.ssim is None
    assert attack.mse.mean > 0
    assert result.originals == ()
    assert result.defenses[1].bound.mse_decibels is None


def test_a_near_exact_attack_is_called_one():
    result = small_audit(
        table(), table_model(), private=1, defenses=["no-defense"], attacks=[Analytic()]
    )
    assert "near copies" in result.defenses[0].verdict
    assert "Nothing is guaranteed" in result.defenses[0].verdict


@pytest.mark.usefixtures("unmeasured")
def test_an_attack_that_does_not_fit_is_left_out_with_the_reason():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3)).eval()
    result = small_audit(images(), model, defenses=["no-defense"], attacks=["analytic"])
    assert result.defenses[0].attacks == ()
    assert any("`analytic` was left out" in note for note in result.notes)


@pytest.mark.usefixtures("unmeasured")
def test_an_unknown_mechanism_leaves_out_the_adaptive_attack():
    threat = ThreatModel(mechanism="unknown")
    result = small_audit(table(), table_model(), defenses=["gradient-noise(0.1)"], threat=threat)
    assert [one.knows_defense for one in result.defenses[0].attacks] == [False]
    assert any("does not tell the mechanism" in note for note in result.notes)


def test_updates_are_audited_too():
    result = small_audit(
        table(),
        table_model(),
        defenses=["no-defense", "optimal-noise(0.1)"],
        local=LocalSteps(lr=0.1, steps=2),
        training=True,
    )
    assert result.setup.federation.sends == "update"
    assert result.defenses[1].bound is not None
    loss, frontier = result.defenses[0].loss, result.frontier
    assert loss == frontier.undefended.loss
    assert loss.mean < frontier.loss_before


@pytest.mark.usefixtures("unmeasured")
def test_given_amounts_are_not_changed():
    result = small_audit(table(), table_model(), defenses=[GradientNoise(0.25)], attacks=[])
    assert result.defenses[1].defense == "gradient-noise(scale=0.25)"
    assert result.defenses[1].verdict.startswith("Not attacked")
    assert csv_text(result.rows()).strip() == "name"


@dataclasses.dataclass(frozen=True)
class Impatient(Attack):
    """An attack during which the user presses Ctrl-C, from its second call on."""

    calls: list = dataclasses.field(default_factory=list)

    def __call__(self, observation, generator=None):
        self.calls.append(1)
        if len(self.calls) > 1:
            raise KeyboardInterrupt
        return InvertingGradients(1)(observation, generator)


@pytest.mark.usefixtures("unmeasured")
def test_stopped_by_the_user_what_is_finished_remains():
    result = small_audit(
        table(),
        table_model(),
        defenses=["no-defense", "gradient-noise(0.1)"],
        attacks=[Impatient()],
    )
    assert result.stopped == "interrupted"
    assert AuditResult.from_json(result.to_json()).stopped == "interrupted"
    assert [leak.examples for leak in result.frontier.undefended.leaks] == [2]
    assert [curve.points for curve in result.frontier.curves] == [()]
    assert any("Stopped by the user" in note for note in result.notes)


@pytest.mark.usefixtures("unmeasured")
def test_progress_rises_to_the_end():
    told = []
    small_audit(
        table(),
        table_model(),
        defenses=["no-defense", "gradient-noise(0.1)"],
        progress=lambda what, share: told.append((what, share)),
    )
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[-1] > 0.85
    assert {"no defense", "first strengths", "details"} == {what for what, _ in told}


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (torch.rand(2, 7), torch.tensor([0, 1]), r"should accept inputs of shape \(2, 7\)"),
        (torch.rand(2, 5), torch.tensor([0, 3]), "the model has 3 outputs"),
        (torch.rand(2, 5), torch.tensor([0.0, 1.0]), "`loss_fn` should take.*float32"),
        (torch.rand(3, 5), torch.tensor([0, 1]), "one class label"),
        (torch.full((2, 5), torch.nan), torch.tensor([0, 1]), "should be finite"),
    ],
)
def test_mistakes_are_named(inputs, targets, message):
    with pytest.raises(ValueError, match=message):
        audit(table_model(), cross_entropy, (inputs, targets))


def test_batches_of_unequal_size_are_an_error():
    with pytest.raises(ValueError, match="should divide the number of examples"):
        run(Subject(table_model(), cross_entropy, table(3)), Federation(batch_size=2))


@dataclasses.dataclass(frozen=True)
class Faulty(Attack):
    """An attack with a mistake of its author's."""

    def __call__(self, observation, generator=None):
        raise KeyError("boom")


@pytest.mark.usefixtures("unmeasured")
def test_a_faulty_attack_does_not_take_the_others_along():
    chosen = [InvertingGradients(1), Faulty()]
    result = small_audit(table(), table_model(), defenses=["gradient-noise(0.1)"], attacks=chosen)
    assert [one.attack for one in result.defenses[1].attacks] == [spec_of(chosen[0])]
    assert any("KeyError" in note for note in result.notes)


def test_what_is_measured_is_what_is_sent():
    """Momentum and mini-batches of local training count in bound and utility, too."""
    model, batch = table_model(), table(2)
    kinds = LocalSteps(0.1, 2), LocalSteps(0.1, 2, batch_size=1, momentum=0.9)
    subjects = [make_subject(model, cross_entropy, batch, local=local) for local in kinds]
    found = [guarantee_of(Laboratory(one), GradientNoise(0.1))[0] for one in subjects]
    bounds = [bound.trace_mse for bound in found]
    assert abs(bounds[0] / bounds[1] - 1) > 0.01


@dataclasses.dataclass
class Told(Attack):
    """Notes what it is told of the range, and guesses nothing."""

    low: list = dataclasses.field(default_factory=list)

    def __call__(self, observation, generator=None):
        self.low.append(observation.low)
        return InvertingGradients(1)(observation, generator)


@pytest.mark.usefixtures("unmeasured")
def test_the_range_of_private_examples_is_not_told():
    inputs, targets = table()
    told = Told()
    private = (100 * inputs[:1], targets[:1])
    noise = [GradientNoise(1.0)]
    result = audit(table_model(), cross_entropy, private, noise, [told])
    assert told.low == [None, None]  # the undefended message, and the defended one
    assert any("range of the inputs" in note for note in result.notes)

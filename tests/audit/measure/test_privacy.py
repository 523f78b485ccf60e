"""(ε, δ) in audits: its numbers, where it is shown, and that the exact attacker keeps to it."""

import pytest
import torch
from scipy import stats
from torch.nn.functional import cross_entropy

from gradveil import PrivateNoise
from gradveil.attacks import identify_trials
from gradveil.audit import AuditResult
from gradveil.audit._result import Releases, privacy_of
from gradveil.audit.measure import _bounds
from gradveil.audit.report import share, summary_table
from gradveil.privacy import epsilon_on_grid, recognition_bound

from ..small import small_audit, table, table_model

SPECS = ["gradient-noise(0.01)", "private-noise(noise_multiplier=2.0, clip=0.1)"]


@pytest.fixture(scope="module")
def result() -> AuditResult:
    with pytest.MonkeyPatch.context() as patched:  # its bound takes long, and nobody asks for it
        patched.setattr(_bounds, "guarantee_of", lambda *_: (None, "not measured"))
        return small_audit(
            table(40),
            table_model(),
            defenses=SPECS,
            attacks=["inverting-gradients(steps=2)"],
            rounds=9,
            delta=1e-4,
            sample_rate=0.5,
        )


def test_the_numbers_of_the_account(result: AuditResult) -> None:
    _, plain, private = (defense.privacy for defense in result.defenses)
    assert plain is None
    assert private is not None
    assert private.unit == "example"
    assert private.epsilon == epsilon_on_grid(2.0, 1.0, 1, 1e-4)
    assert private.epsilon_rounds == epsilon_on_grid(2.0, 0.5, 9, 1e-4)
    told = result.defenses[2].told_apart
    assert told is not None
    assert private.candidates == told.candidates
    normal = stats.norm
    assert private.recognition == pytest.approx(
        normal.cdf(normal.ppf(1 / told.candidates) + 1 / 2.0)
    )
    assert private.recognition_rounds == recognition_bound(1 / told.candidates, 2.0, 0.5, 9)
    assert AuditResult.from_json(result.to_json()) == result
    assert result.rows()[-1]["privacy_epsilon"] == private.epsilon
    assert "privacy_epsilon" not in result.rows()[0]
    assert private.neighbours == "add-remove"  # the audit's batch size is a fixed divisor
    assert "batch_size=" in result.defenses[2].defense
    assert result.rows()[-1]["privacy_neighbours"] == "add-remove"


def test_the_report_shows_it(result: AuditResult) -> None:
    shown = summary_table(result)
    labels = [column.label for column in shown.columns]
    place = labels.index("ε, one message")
    assert labels[place : place + 3] == ["ε, one message", "ε, 9 rounds", "Recognised at most"]
    assert [cell.text for cell in shown.rows[0][place : place + 3]] == ["no guarantee"] * 3
    private = result.defenses[2].privacy
    assert private is not None
    assert shown.rows[2][place].value == private.epsilon
    assert shown.rows[2][place].note.startswith("one example more or less")
    assert shown.rows[2][place + 2].value == private.recognition
    assert shown.rows[2][place + 2].note == f"{share(private.recognition_rounds)} with all rounds"
    hints = [column.hint for column in shown.columns[place : place + 3]]
    assert hints[:2] == ["δ = 0.0001, secret noise", "Poisson sampling at 0.500"]


def test_without_a_private_defense_nothing_is_added() -> None:
    result = small_audit(table(), table_model(), defenses=SPECS[:1], attacks=[])
    assert "Recognised at most" not in [c.label for c in summary_table(result).columns]


def test_a_sampling_rate_counts_for_a_fixed_divisor_only() -> None:
    """One made from who was drawn tells how many were: ε = 0.915 was stated, 6.07 is there."""
    releases = Releases(rounds=200, sample_rate=0.01)
    every = epsilon_on_grid(1.0, 1.0, 200, 1e-5)
    for own in (PrivateNoise(1.0, 1.0), PrivateNoise(1.0, 1.0, unit="client")):
        found = privacy_of(own, releases)
        assert found is not None
        assert found.epsilon_rounds == every
    fixed = privacy_of(PrivateNoise(1.0, 1.0, batch_size=10), releases)
    assert fixed is not None
    assert fixed.epsilon_rounds == epsilon_on_grid(1.0, 0.01, 200, 1e-5)


def test_clients_are_not_hidden_by_sampling() -> None:
    with pytest.raises(ValueError, match="be 1 where whole clients are hidden"):
        small_audit(
            table(40),
            table_model(),
            defenses=["private-noise(noise_multiplier=2.0, clip=0.1, unit='client')"],
            sample_rate=0.5,
        )


def test_a_private_update_is_stated_for_clients() -> None:
    found = privacy_of(PrivateNoise(1.0, 1.0, unit="client"), Releases(), 10)
    assert found is not None
    assert found.unit == "client"
    assert found.hides.startswith("one client replaced by an empty one")
    assert found.epsilon_rounds == epsilon_on_grid(1.0, 1.0, 100, 1e-5) > found.epsilon


@pytest.mark.parametrize(("size", "hidden"), [(8, "add-remove"), (None, "zero-out")])
def test_a_divisor_at_hand_tells_how_many_there_are(size: int | None, hidden: str) -> None:
    found = privacy_of(PrivateNoise(1.0, 1.0, batch_size=size), Releases(), 10)
    assert found is not None
    assert found.neighbours == hidden


def identified(noise_multiplier: float, trials: int = 100) -> tuple[float, float]:
    """The 99.9 % interval (Clopper-Pearson) of how often the right one of 8 is picked."""
    report = identify_trials(
        table_model(),
        cross_entropy,
        table(60),
        PrivateNoise(noise_multiplier, clip=0.05),  # all are clipped: the bound is near
        num_classes=3,
        candidates=8,
        batch_size=3,
        trials=trials,
        per_draw=50,
        one_class=False,
        generator=torch.Generator().manual_seed(1),
    )
    right = sum(bool(trial.is_first) for trial in report.trials)
    found = stats.binomtest(right, trials).proportion_ci(0.999, method="exact")
    return found.low, found.high


@pytest.mark.slow
def test_the_exact_attacker_never_beats_the_recognition_bound() -> None:
    """At the stated noise; with a sixteenth of it the same check finds him out."""
    bounds = {z: recognition_bound(1 / 8, z, 1.0, 1) for z in (1.0, 3.0)}
    assert bounds[1.0] == pytest.approx(stats.norm.cdf(stats.norm.ppf(1 / 8) + 1))
    for z, bound in bounds.items():
        assert identified(z)[0] <= bound
    assert identified(1 / 16)[0] > bounds[1.0]

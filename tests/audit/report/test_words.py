"""What the report says follows from the numbers, and no more than that."""

from dataclasses import replace

from gradveil.attacks import ThreatModel
from gradveil.audit import Federation
from gradveil.audit._result import AuditResult, DefenseResult
from gradveil.audit.report import render_report
from gradveil.audit.report._tables import summary_table
from gradveil.audit.report._words import below_reference
from gradveil.messages import LocalSteps
from gradveil.scoring import Interval
from tests.audit.example_result import example_result


def with_errors(result: AuditResult, errors: dict[str, Interval]) -> AuditResult:
    def change(defense: DefenseResult) -> DefenseResult:
        attacks = tuple(replace(a, mse=errors[defense.name]) for a in defense.attacks)
        return replace(defense, attacks=attacks)

    kept = tuple(change(d) for d in result.defenses if d.name in errors)
    return replace(result, defenses=kept)


def test_an_attack_below_the_bound_is_admitted():
    assert below_reference(example_result()) == ""
    low = Interval(0.01, 0.01, 0.01)
    found = below_reference(with_errors(example_result(), {"noise": low, "optimal noise": low}))
    assert "went below the reference error for noise and optimal noise" in found
    assert "a limit for Gaussian data, not a guarantee for images" in found


def test_a_bound_whose_assumptions_fail_is_called_no_guarantee():
    defense = example_result().defenses[1]
    assert defense.bound is not None
    bound = replace(defense.bound, reason="the message jumps", batches=8)
    jumps = replace(defense, bound=bound, no_guarantee=bound.reason)
    result = replace(example_result(), defenses=(jumps,))
    table = summary_table(result)
    place = [column.label for column in table.columns].index("Reference error")
    assert table.rows[0][place].text.endswith(" †")
    assert "over 8 batches, no guarantee here" in table.rows[0][place].note


def test_the_threat_model_says_what_is_known():
    page = render_report(example_result())
    told = "Know the defense and its settings, but not the noise that was drawn: adaptive."
    assert told in page
    assert "Do not know the defense: inverting-gradients." in page
    assert "given the labels of the batch" in page
    setup = replace(
        example_result().setup,
        threat=ThreatModel("unknown", statistics=False, mechanism="realised"),
        federation=Federation(local=LocalSteps(0.1, 2)),
    )
    page = render_report(replace(example_result(), setup=setup))
    assert "no labels" in page
    assert "does not know the data's mean" in page
    assert "the very noise levels or mask" in page
    assert "one weight update" in page

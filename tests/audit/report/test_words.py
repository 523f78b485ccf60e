"""What the report says follows from the numbers, and no more than that."""

from dataclasses import replace

from gradveil.attacks import ThreatModel
from gradveil.audit import Federation
from gradveil.audit._result import AuditResult, DefenseResult
from gradveil.audit.report._numbers import number
from gradveil.audit.report._tables import summary_table
from gradveil.audit.report._words import takeaways, threat_model
from gradveil.messages import LocalSteps
from gradveil.scoring import Interval
from tests.audit.example_result import example_result, unattacked_result


def text(result: AuditResult) -> str:
    return " ".join(takeaways(result))


def with_errors(result: AuditResult, errors: dict[str, Interval]) -> AuditResult:
    def change(defense: DefenseResult) -> DefenseResult:
        attacks = tuple(replace(a, mse=errors[defense.name]) for a in defense.attacks)
        return replace(defense, attacks=attacks)

    kept = tuple(change(d) for d in result.defenses if d.name in errors)
    return replace(result, defenses=kept)


def test_gains_are_ratios_of_trace_bounds_and_utility_is_equal_only_if_it_was_held_so():
    noise, optimal = (d.bound for d in example_result().defenses[1:3])
    assert noise is not None
    assert optimal is not None
    found = text(example_result())
    assert f"optimal noise {number(optimal.trace_mse / noise.trace_mse)} ×" in found
    assert "At equal utility" in found
    by_scale = replace(example_result(), setup=replace(example_result().setup, match="scale"))
    assert "At equal utility" not in text(by_scale)


def test_an_attack_below_the_bound_is_admitted():
    assert "went below the reference error" not in text(example_result())
    low = Interval(0.01, 0.01, 0.01)
    found = text(with_errors(example_result(), {"noise": low, "optimal noise": low}))
    assert "went below the reference error for noise and optimal noise" in found
    assert "a limit for Gaussian data, not a guarantee for images" in found


def test_what_has_no_bound_is_named_and_no_formal_privacy_is_claimed():
    found = text(example_result())
    assert "None of this carries a formal (ε, δ) privacy guarantee." in found
    formal = replace(
        example_result().defenses[1], formal_privacy="(3, 1e-5) by accounting", is_formal=True
    )
    assert "Formal privacy is stated for noise only" in text(
        replace(example_result(), defenses=(formal,))
    )


def test_a_bound_whose_assumptions_fail_is_called_no_guarantee():
    defense = example_result().defenses[1]
    assert defense.bound is not None
    bound = replace(defense.bound, reason="the message jumps", batches=8)
    jumps = replace(defense, bound=bound, no_guarantee=bound.reason)
    result = replace(example_result(), defenses=(jumps,))
    assert summary_table(result).rows[0][3].text.endswith(" †")
    assert "over 8 batches, no guarantee here" in summary_table(result).rows[0][3].note


def test_equal_utility_is_said_only_where_losses_agree():
    noise, optimal = example_result().defenses[1:3]
    for loss, words, others in (
        (noise.loss, "At equal utility, the reference error", "is not equal"),
        (
            Interval(9.0, 8.9, 9.1),
            "The loss after training is not equal: noise",
            "At equal utility",
        ),
        (None, "The loss after training is not equal", "At equal utility"),
    ):
        pair = (noise, replace(optimal, loss=loss))
        found = text(replace(example_result(), defenses=pair))
        assert words in found
        assert others not in found


def test_without_attacks_nothing_is_said_about_them():
    found = text(unattacked_result())
    assert "rebuilt" not in found


def test_the_threat_model_says_what_is_known():
    lines = " ".join(threat_model(example_result()))
    assert "Know the defense and its settings, but not the noise that was drawn: adaptive." in lines
    assert "Do not know the defense: inverting-gradients." in lines
    assert "given the labels of the batch" in lines
    setup = replace(
        example_result().setup,
        threat=ThreatModel("unknown", statistics=False, mechanism="realised"),
        federation=Federation(local=LocalSteps(0.1, 2)),
    )
    lines = " ".join(threat_model(replace(example_result(), setup=setup)))
    assert "no labels" in lines
    assert "does not know the data's mean" in lines
    assert "the very noise levels or mask" in lines
    assert "one weight update" in lines

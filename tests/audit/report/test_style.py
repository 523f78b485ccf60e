"""Families and looks are asked of typed fields, not of names."""

from dataclasses import replace

from gradveil.audit import AuditResult, Curve
from gradveil.audit.report._charts import looks
from gradveil.catalog import build_defense, name_of

from ..example_result import example_result


def with_curves(*specs: str) -> AuditResult:
    """The example with curves of these defenses, under names that say nothing."""
    result = example_result(size=2)
    abouts = [build_defense(spec).about for spec in specs]
    curves = tuple(
        Curve(f"row {i}", about.family, "", "", (), twin=about.twin and name_of(about.twin))
        for i, about in enumerate(abouts)
    )
    return replace(result, defenses=(), frontier=replace(result.frontier, curves=curves))


def test_twins_go_together_whatever_they_are_called() -> None:
    result = with_curves("optimal-noise(0.1)", "gradient-pruning(0.9)", "gradient-noise(0.1)")
    found = looks(result)
    assert found["row 0"].color == found["row 2"].color != found["row 1"].color
    assert (found["row 0"].filled, found["row 2"].filled) == (True, False)


def test_two_of_a_kind_do_not_look_alike() -> None:
    result = with_curves("optimal-noise(0.1)", "gradient-noise(0.1)", "optimal-noise(0.2)")
    colors = [looks(result)[f"row {i}"].color for i in range(3)]
    assert colors[0] == colors[1] != colors[2]
    assert len(set(looks(result).values())) == 3


def test_noisy_pruning_is_a_family_of_its_own() -> None:
    noisy = "optimal-pruning(0.9, noise=optimal-noise(0.1))"
    found = looks(with_curves("gradient-pruning(0.9)", noisy))
    assert found["row 0"].color != found["row 1"].color

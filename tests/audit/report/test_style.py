"""Twins, families and looks are asked of typed fields, not of names."""

from dataclasses import replace

from gradveil.audit import AuditResult, DefenseResult
from gradveil.audit._result import identity
from gradveil.audit.report._facts import families, looks, twins
from gradveil.catalog import build_defense

from ..example_result import example_result

NEW = ("family", "twin", "is_undefended")


def with_defenses(*specs: str) -> AuditResult:
    """The example with these defenses, under names that say nothing."""
    result = example_result(size=2)
    rows = [
        replace(result.defenses[0], name=f"row {i}", defense=spec, **identity(build_defense(spec)))
        for i, spec in enumerate(specs)
    ]
    frontier = replace(result.frontier, curves=())
    return replace(result, defenses=tuple(rows), frontier=frontier)


def names(groups: list[tuple[DefenseResult, ...]]) -> list[list[str]]:
    return [[d.name for d in group] for group in groups]


def test_twins_go_together_whatever_they_are_called() -> None:
    result = with_defenses("optimal-noise(0.1)", "no-defense", "gradient-noise(0.1)")
    assert names(families(result.defenses)) == [["row 0", "row 2"], ["row 1"]]
    assert names(twins(result)) == [["row 2", "row 0"]]
    found = looks(result)
    assert found["row 0"].color == found["row 2"].color != found["row 1"].color
    assert (found["row 0"].filled, found["row 2"].filled) == (True, False)


def test_two_of_a_kind_do_not_look_alike() -> None:
    result = with_defenses("optimal-noise(0.1)", "gradient-noise(0.1)", "optimal-noise(0.2)")
    assert names(families(result.defenses)) == [["row 0", "row 1"], ["row 2"]]
    assert len(set(looks(result).values())) == 3


def test_two_of_a_family_without_a_classical_one_give_no_gain() -> None:
    result = with_defenses("optimal-noise(0.1)", "optimal-noise(0.1, cap=10.0)")
    assert names(families(result.defenses)) == [["row 0"], ["row 1"]]
    assert twins(result) == []


def test_noisy_pruning_is_a_family_of_its_own() -> None:
    noisy = "optimal-pruning(0.9, noise=optimal-noise(0.1))"
    assert twins(with_defenses("gradient-pruning(0.9)", noisy)) == []

"""The figure of all claims and of the frontier."""

import pytest

from paper import figures
from paper.figures import VERDICTS, draw_summary
from paper.study import Table

SETTINGS = ("as in the paper", "the attacker knows the defense", "plans that reveal nothing")
PARTS = ("mean", "low", "high")
CLAIMED = ("name", "claim", "setting", "verdict")
COLUMNS = {"defense": str, "plan": str, "level": float, "blank_mse": float}
COLUMNS |= {f"{name}_{part}": float for name in ("loss", "aware") for part in PARTS}


def verdicts():
    """Two claims, one that is not asked in a setting."""
    given = [*VERDICTS, "not asked"]
    names = ("mnist-noise-error", "cifar-noise-error")
    pairs = [(name, setting) for name in names for setting in SETTINGS]
    rows = [
        (name, f"{name} protects", setting, verdict)
        for (name, setting), verdict in zip(pairs, given, strict=True)
    ]
    return Table(CLAIMED, rows)


def frontier():
    curves = [("no-defense", ""), ("clamped-noise", ""), ("optimal-clamped-noise", "public")]
    curves += [
        ("optimal-clamped-noise", "private"),
        ("gradient-noise", ""),
        ("sign-compression", ""),
    ]
    rows = [
        (*curve, level, 0.9, level, None, None, 0.1 + level, level, 0.2 + level)
        for curve in curves
        for level in (0.1, 0.2)
    ]
    return Table(COLUMNS, rows)


@pytest.fixture
def drawn(monkeypatch):
    found = []
    monkeypatch.setattr(figures, "save", lambda made, stem: found.append(made))
    return found


def test_each_verdict_has_its_letter_at_its_place(drawn, tmp_path):
    draw_summary(tmp_path / "summary", verdicts(), frontier())
    grid, _ = drawn[0].axes
    places = {text.get_position(): text.get_text() for text in grid.texts}
    assert places == {
        (0.5, 0.5): "R",
        (1.5, 0.5): "N",
        (2.5, 0.5): "U",
        (0.5, 1.5): "T",
        (1.5, 1.5): "–",
    }
    assert [label.get_text() for label in grid.get_yticklabels()] == [
        "mnist-noise-error protects",
        "cifar-noise-error protects",
    ]
    shown = [text.get_text() for text in grid.get_legend().get_texts()]
    letters = [f"{letter}: {name}" for name, (letter, _, _) in VERDICTS.items()]
    assert shown == [*letters, "empty: no question of that setting"]


def test_letters_and_curves_are_told_apart_without_colours(drawn, tmp_path):
    assert len({letter for letter, _, _ in VERDICTS.values()}) == len(VERDICTS)
    draw_summary(tmp_path / "summary", verdicts(), frontier())
    lines = drawn[0].axes[1].containers
    looks = {(c.lines[0].get_marker(), c.lines[0].get_markerfacecolor() == "white") for c in lines}
    assert len(looks) == len(lines) == 6


def test_it_is_drawn_from_nothing_and_from_half(drawn, tmp_path):
    nothing = Table(CLAIMED, [])
    for table in (nothing, verdicts()):
        draw_summary(tmp_path / "summary", table, Table(COLUMNS, []))
    draw_summary(tmp_path / "summary", nothing, frontier())
    assert len(drawn) == 3


def test_files_are_written(tmp_path):
    draw_summary(tmp_path / "summary", verdicts(), frontier())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["summary.pdf", "summary.png"]

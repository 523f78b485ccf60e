"""The figure of everything, from finished cells."""

from gradveil.studies.claims import CLAIMS, find
from gradveil.studies.figures import _panels
from gradveil.studies.reproduce import draw_overview
from tests.studies.synthetic import synthetic_store


def test_every_claim_is_in_the_figure_with_its_verdicts(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(_panels, "save", lambda made, stem: drawn.append((made, stem)))
    store = synthetic_store("quick", effect=0.4)
    findings = find(store)
    draw_overview(findings, store, tmp_path)
    [(made, stem)] = drawn
    assert stem == tmp_path / "summary"
    grid, frontier = made.axes
    assert len(grid.get_yticklabels()) == len(CLAIMS)
    asked = [f for f in findings if f.setting and f.judgement.verdict != "-"]
    assert len(grid.texts) == len(asked)
    assert frontier.containers

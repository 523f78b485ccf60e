"""No verdict without an attack that works: the undefended message beside a blind guess."""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch.nn.functional import cross_entropy

from gradveil.attacks import Analytic, InvertingGradients
from gradveil.audit import AuditResult
from gradveil.audit.measure import blind_guess
from gradveil.audit.measure._cells import Search
from gradveil.audit.report import first_sentences, render_report
from gradveil.cli._audit import show_audit
from tests.audit.small import image_model, images, make_subject, small_audit, table, table_model

WORDS = "hese attacks cannot judge this model"


def blind() -> AuditResult:
    """One step of a descent finds nothing."""
    return small_audit(
        images(60),
        image_model(),
        defenses=["gradient-noise(0.1)", "optimal-noise(0.1)"],
        attacks=[InvertingGradients(1)],
    )


@pytest.fixture(scope="module")
def unable() -> AuditResult:
    return blind()


def terminal(result: AuditResult) -> str:
    file = io.StringIO()
    show_audit(result, Console(file=file, width=100))
    return " ".join(file.getvalue().split())


def test_an_attack_that_finds_nothing_gives_no_verdict(unable):
    assert not unable.can_judge
    assert unable.frontier.undefended.leaks[0].gain.mean < 1
    assert WORDS in first_sentences(unable)[0][1]
    assert "58 public examples" in render_report(unable)
    for defense in unable.defenses[1:]:
        assert WORDS in defense.verdict
        assert "no further" not in defense.verdict
        assert "picks the right one in" in defense.verdict  # it leans on who is told apart ...
        assert "Gaussian reference error" in defense.verdict  # ... and on the bound
    assert WORDS in terminal(unable)


def test_the_report_and_the_files_say_so(unable):
    pytest.importorskip("jinja2")
    pytest.importorskip("plotly")
    html = render_report(unable)
    assert "These attacks cannot judge this model.</strong>" in html
    assert AuditResult.from_json(unable.to_json()) == unable
    assert unable.rows()[0]["can_judge"] is False
    plain = unable.frontier.undefended
    able = replace(plain, leaks=(replace(plain.leaks[0], works=True),))
    frontier = replace(unable.frontier, undefended=able)
    assert "cannot judge this model.</strong>" not in render_report(
        replace(unable, frontier=frontier)
    )


def test_the_undefended_message_is_attacked_although_nobody_asked(unable):
    assert [defense.name for defense in unable.defenses] == ["no defense", "noise", "optimal noise"]
    assert unable.frontier.undefended.leaks[0].examples == 2


def test_an_attack_that_works_judges():
    result = small_audit(
        table(), table_model(), private=1, defenses=["gradient-noise(0.1)"], attacks=[Analytic()]
    )
    assert result.can_judge
    assert result.frontier.undefended.leaks[0].copies == 1
    assert WORDS not in result.to_json()
    assert WORDS not in terminal(result)
    assert "strongest attack" in terminal(result)
    assert result.defenses[1].verdict.startswith("The strongest attack, analytic, rebuilds at most")


def test_a_leak_is_a_leak_even_where_the_undefended_attack_failed(monkeypatch):
    """What was found is told whatever else failed."""
    leak = Search._leak

    def failed(search, defense, moment):
        return replace(leak(search, defense, moment), works=defense != "no-defense")

    monkeypatch.setattr(Search, "_leak", failed)
    noise = ["gradient-noise(1e-9)"]
    result = small_audit(table(), table_model(), private=1, defenses=noise, attacks=[Analytic()])
    assert WORDS in result.defenses[0].verdict
    assert "near copies" in result.defenses[1].verdict


def test_without_attacks_nothing_is_known():
    result = small_audit(table(), table_model(), defenses=["gradient-noise(0.1)"], attacks=[])
    assert result.frontier.undefended.leaks[0].gain is None
    assert WORDS not in result.to_json()


def subject(inputs, targets, private=2, public=True):
    return make_subject(
        table_model(),
        cross_entropy,
        (inputs[:private], targets[:private]),
        batches=1,
        public=(inputs[private:], targets[private:]) if public else None,
        normalization="none",
        local=None,
        name="small",
    )


def test_the_guess_is_the_mean_or_the_classs_mean_where_that_is_nearer():
    inputs, targets = table(26)
    inputs[targets == 0] *= 0.1
    found = blind_guess(subject(inputs, targets), labels_known=True)
    assert found.name == "the mean of its class among 24 public examples"
    public, labels = inputs[2:], targets[2:]
    expected = [
        (public[labels == y].mean(0) - x).square().mean()
        for x, y in zip(inputs[:2], targets[:2], strict=True)
    ]
    torch.testing.assert_close(found.errors, torch.stack(expected))
    unlabelled = blind_guess(subject(inputs, targets), labels_known=False)
    assert unlabelled.name == "the mean of 24 public examples"
    torch.testing.assert_close(unlabelled.errors, (public.mean(0) - inputs[:2]).square().mean(1))
    few = blind_guess(subject(inputs[:4], targets[:4]), labels_known=True)
    assert few.name == "the mean of 2 public examples"


def test_without_public_examples_no_example_is_a_guess_of_itself():
    inputs, targets = table(3)
    found = blind_guess(subject(inputs, targets, 3, public=False), labels_known=True)
    torch.testing.assert_close(found.errors[0], (inputs[1:].mean(0) - inputs[0]).square().mean())
    alone = blind_guess(subject(inputs, targets, 1, public=False), labels_known=True)
    torch.testing.assert_close(alone.errors, (inputs[:1] - 0.5).square().mean(1))

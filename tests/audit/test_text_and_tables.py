"""Audits of tokens and of tables with categories."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import AdaptedModel
from gradveil.attacks import SpanCheck, TabLeak, ThreatModel, TokenRows
from gradveil.audit import default_attacks, write_results
from gradveil.audit.measure import blind_guess
from gradveil.audit.report import first_sentences
from gradveil.data import Dataset, TableLayout
from gradveil.messages import LocalSteps
from gradveil.models import build_model, next_token_loss
from tests.table import LAYOUT, perceptron, table
from tests.text import CLASSES, sequences, transformer

from .small import audit, make_subject
from .task_models import Case, small_audit

pytestmark = pytest.mark.usefixtures("unmeasured")

IDS = sequences(12)


def language_model() -> Case:
    return Case(transformer(True), next_token_loss, IDS, IDS)


def classifier() -> Case:
    return Case(transformer(False), cross_entropy, IDS, torch.arange(len(IDS)) % CLASSES)


@pytest.mark.parametrize("make", [language_model, classifier])
def test_undefended_text_is_read(make, tmp_path, measured):
    result = small_audit(make(), "unknown", attacks=None)
    assert result.notes == ()
    assert result.setup.tokens
    (defense,) = result.defenses
    rows, spans = defense.attacks
    assert (rows.attack, spans.attack) == ("token-rows", "span-check")
    assert spans.accuracy.mean == 1
    assert spans.mse.mean == 0  # the share of wrong tokens
    assert 0 < rows.accuracy.mean < 1
    assert defense.told_apart.rate.mean == 1
    assert "near copies of 2 of 2 examples (0 % of a blind guess" in first_sentences(result)[0][1]
    assert result.rows()[0]["accuracy"] == rows.accuracy.mean
    write_results(result, tmp_path)


def test_noise_on_text_has_no_bound_and_says_why(measured):
    result = small_audit(classifier(), defenses=["optimal-noise(scale=0.1)"], attacks=[TokenRows()])
    _, defense = result.defenses
    assert defense.bound is None
    assert "tokens are none" in defense.verdict
    assert defense.attacks[0].knows_defense


def test_attacks_that_can_do_without_the_defense_are_not_left_out():
    case = classifier()
    result = audit(
        case.model, case.loss_fn, (case.inputs[:2], case.targets[:2]), ["no-defense"],
        [TokenRows()], threat=ThreatModel(), training=False,
    )  # fmt: skip
    assert result.notes == ()
    assert result.defenses[0].attacks


def test_tokens_have_no_local_steps():
    case = classifier()
    with pytest.raises(ValueError, match="`local` should be left out for tokens"):
        small_audit(case, local=LocalSteps(0.1, 2))


def test_the_most_frequent_token_is_the_guess():
    case = classifier()
    public = torch.tensor([[1, 2], [1, 3], [0, 3]]), torch.tensor([0, 1, 2])
    subject = make_subject(
        case.model, case.loss_fn, (IDS[:2, :2], case.targets[:2]), batches=1, public=public,
        normalization=None, local=None, name="text",
    )  # fmt: skip
    wrong = (IDS[:2, :2] != torch.tensor([1, 3])).double().mean(1)
    assert torch.equal(blind_guess(subject, labels_known=True).errors, wrong)
    assert subject.prior is None
    assert subject.input_range is None


def test_tables_with_categories_have_their_attack_and_columns():
    rows, labels = table(12)
    case = Case(perceptron(), cross_entropy, rows, labels)
    result = small_audit(case, attacks=None, steps=20, layout=LAYOUT)
    (leak,) = result.defenses[0].attacks
    (unaware,) = small_audit(case, layout=LAYOUT).defenses[0].attacks
    assert leak.attack.startswith("tab-leak(steps=20")
    assert 0 < leak.accuracy.mean <= 1
    assert unaware.accuracy is not None
    assert result.rows()[0]["accuracy"] == leak.accuracy.mean


def test_a_layout_that_does_not_fit_is_refused():
    rows, labels = table(12)
    case = Case(perceptron(), cross_entropy, rows, labels)
    with pytest.raises(ValueError, match="of the layout"):
        small_audit(case, layout=TableLayout.of(3))


def test_the_usual_attacks_are_those_of_the_data():
    rows, labels = table(4)
    text = Dataset(IDS[:4], labels, (0.0,), (1.0,), 2, "text")
    encoded = Dataset(rows, labels, (0.0,), (1.0,), 2, "table", LAYOUT)
    assert [type(a) for a in default_attacks(5, text)] == [TokenRows, SpanCheck]
    assert [type(a) for a in default_attacks(5, encoded)][1] is TabLeak


def test_embeddings_are_numbers_like_all_others():
    """As `inputs_embeds` of transformers: the argument has a name, the output has another."""

    class Embedded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = build_model("mlp", sizes=[12, 6, 2])

        def forward(self, input_ids=None, inputs_embeds=None):
            assert input_ids is None
            return {"logits": self.model(inputs_embeds)}

    embeddings = torch.randn(12, 3, 4, generator=torch.Generator().manual_seed(0))
    model = AdaptedModel(Embedded(), output="logits", input="inputs_embeds")
    result = small_audit(Case(model, cross_entropy, embeddings, torch.arange(12) % 2))
    assert result.defenses[0].attacks
    assert not result.setup.tokens

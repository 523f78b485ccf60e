"""Audits of other tasks than classification, end to end."""

import pytest
import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss

from gradveil.attacks import ThreatModel
from gradveil.audit import AuditResult
from gradveil.models import build_model

from .small import audit, make_subject
from .task_models import cases, small_audit

pytestmark = pytest.mark.usefixtures("unmeasured")

TASKS = {
    "regression": "numbers",
    "multi-label": "numbers",
    "segmentation": "labels",
    "sequences": "labels",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "regression")) for name in TASKS],
)
def test_every_kind_is_audited(name, measured):
    result = small_audit(cases()[name], defenses=["gradient-noise(0.1)"], training=True)
    assert result.stopped is None
    assert result.notes == ()
    assert result.setup.task == TASKS[name]
    _, defense = result.defenses
    assert defense.bound is not None
    assert defense.bound.prior == "Gaussian fitted to 10 other examples"
    assert defense.told_apart is not None
    assert not defense.told_apart.one_class
    assert defense.loss is not None
    (attack,) = defense.attacks
    assert attack.label_accuracy == (None if TASKS[name] == "numbers" else 1.0)
    assert attack.accuracy is None
    assert result.frontier.undefended.leaks[0].gain is not None
    assert result.frontier.guess == "the mean of 10 public examples"
    assert AuditResult.from_json(result.to_json()) == result


@pytest.mark.parametrize("name", TASKS)
def test_targets_that_are_not_told_are_looked_for(name):
    result = small_audit(cases()[name], "unknown")
    assert result.notes == ()
    (attack,) = result.defenses[0].attacks
    assert attack.runs[0].status == "finished"
    if TASKS[name] == "labels":
        assert 0 <= attack.label_accuracy <= 1


def test_where_targets_can_neither_be_told_nor_looked_for_the_attack_is_left_out_with_a_reason():
    result = small_audit(cases()["sequences, flattened"], "unknown")
    assert result.defenses[0].attacks == ()
    assert any("should take probabilities of classes" in note for note in result.notes)
    case = cases()["regression"]._replace(loss_fn=l1_loss)
    result = small_audit(case, "unknown")
    assert any("derivative is 0" in note for note in result.notes)
    assert small_audit(case, "known").defenses[0].attacks


def test_counts_of_classes_need_classes():
    with pytest.raises(ValueError, match="labels='counts' with numbers"):
        small_audit(cases()["regression"], "counts")


def test_targets_that_torch_would_compare_each_with_each_are_refused():
    case = cases()["regression"]
    with pytest.raises(ValueError, match="Using a target size"):
        small_audit(case._replace(targets=case.targets[:, 0]))


def test_targets_of_a_wrong_type_or_number_are_refused():
    case = cases()["regression"]
    for targets in (case.targets > 0, case.targets[:1], case.targets.tolist()):
        with pytest.raises(ValueError, match="for each of the 2 inputs"):
            audit(case.model, case.loss_fn, (case.inputs[:2], targets))
    with pytest.raises(ValueError, match="finite numbers"):
        audit(case.model, case.loss_fn, (case.inputs[:2], torch.full((2, 2), torch.nan)))


def test_public_examples_are_of_the_same_kind():
    case = cases()["regression"]
    with pytest.raises(ValueError, match="`public` should hold targets like the private ones"):
        audit(
            case.model,
            mse_loss,
            (case.inputs[:2], case.targets[:2]),
            public=(case.inputs, case.targets[:, 0]),
        )


class Several(nn.Module):
    """A model that returns what a subclass says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.model = kind, build_model("mlp", sizes=[5, 6, 2])

    def forward(self, inputs):
        outputs = {"states": (inputs,), "logits": self.model(inputs)}
        return outputs if self.kind == "dict" else tuple(outputs.values())


@pytest.mark.parametrize(("kind", "output"), [("dict", "logits"), ("tuple", 1), ("tuple", -1)])
def test_one_of_several_outputs(kind, output):
    plain = cases()["regression"]
    torch.manual_seed(0)
    several = plain._replace(model=Several(kind))
    several.model.model.load_state_dict(plain.model.state_dict())
    found, expected = small_audit(several, output=output), small_audit(plain)
    assert found.setup.model == "Several"
    assert found.defenses[0].attacks[0].mse == expected.defenses[0].attacks[0].mse
    assert found.defenses[0].layers[0].name.startswith("model.model.")


def test_several_outputs_without_a_choice_are_named():
    case = cases()["regression"]._replace(model=Several("dict"))
    with pytest.raises(
        ValueError, match=r"dict with 'states' \(tuple\), 'logits' \(2, 2\).*output="
    ):
        small_audit(case)
    with pytest.raises(ValueError, match=r"`output` should name.*'scores'.*'logits' \(2, 2\)"):
        small_audit(case, output="scores")
    with pytest.raises(ValueError, match=r"`output` should name.*2, and that it returns tuple"):
        small_audit(case._replace(model=Several("tuple")), output=2)


def test_the_subject_says_what_it_is():
    case = cases()["segmentation"]
    subject = make_subject(
        case.model, case.loss_fn, (case.inputs, case.targets), batches=2, public=None,
        normalization=None, local=None, name="maps",
    )  # fmt: skip
    assert (subject.data.task, subject.data.tokens, subject.data.layout) == ("labels", False, None)
    assert subject.data.num_classes == 3
    assert subject.input_range is not None


def test_a_threat_model_is_that_of_the_task():
    ThreatModel(labels="counts").check_task("classification")
    with pytest.raises(ValueError, match="labels='counts'"):
        ThreatModel(labels="counts").check_task("labels")

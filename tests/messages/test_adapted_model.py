"""Models that return several things, or take their inputs by name."""

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import AdaptedModel, GradientMessage, ModelError


class Result(NamedTuple):
    states: torch.Tensor
    logits: torch.Tensor


class Several(nn.Linear):
    def __init__(self, kind: type) -> None:
        super().__init__(3, 2)
        self.kind = kind

    def forward(self, inputs):
        parts = {"states": inputs, "logits": super().forward(inputs)}
        if self.kind is dict:
            return parts
        return Result(**parts) if self.kind is Result else self.kind(parts.values())


@pytest.mark.parametrize(
    ("kind", "output"),
    [(dict, "logits"), (dict, 1), (tuple, 1), (list, -1), (Result, "logits"), (Result, 1)],
)
def test_the_message_is_that_of_the_chosen_output(kind, output):
    model, labels = Several(kind), torch.tensor([0, 1])
    inputs = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    plain = nn.Linear(3, 2)
    plain.load_state_dict(model.state_dict())
    found = GradientMessage(AdaptedModel(model, output), cross_entropy, labels)(inputs)
    expected = GradientMessage(plain, cross_entropy, labels)(inputs)
    for name, value in expected.items():
        torch.testing.assert_close(found[f"model.{name}"], value)


@pytest.mark.parametrize(
    ("kind", "output", "message"),
    [
        (dict, "scores", r"'scores', and that it returns dict with 'states' \(2, 3\), 'logits'"),
        (tuple, 2, r"2, and that it returns tuple with 0 \(2, 3\), 1 \(2, 2\)"),
        (tuple, "logits", "'logits', and that it returns tuple"),
        (dict, True, "True, and that it returns dict"),
    ],
)
def test_outputs_that_are_not_there_are_named(kind, output, message):
    with pytest.raises(ValueError, match=message):
        AdaptedModel(Several(kind), output)(torch.zeros(2, 3))


def test_a_loss_that_cannot_take_them_names_them():
    message = GradientMessage(Several(dict), cross_entropy, torch.tensor([0, 1]))
    with pytest.raises(ModelError, match=r"outputs \(dict with 'states' \(2, 3\), 'logits'"):
        message(torch.zeros(2, 3))


def test_wrong_kinds_are_refused():
    for options in ({"output": 1.5}, {"input": 3}):
        with pytest.raises(TypeError, match="should be"):
            AdaptedModel(nn.Linear(3, 2), **options)
    with pytest.raises(TypeError, match="model"):
        AdaptedModel("linear")


def test_transformers_models_take_embeddings_and_return_their_own_class():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=6, num_labels=3,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    embeddings = torch.rand(2, 4, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 2])
    adapted = AdaptedModel(model, output="logits", input="inputs_embeds")
    gradient = GradientMessage(adapted, cross_entropy, labels)(embeddings)
    model.zero_grad()
    model(inputs_embeds=embeddings, labels=labels).loss.backward()
    own = model.classifier.weight.grad
    torch.testing.assert_close(gradient["model.classifier.weight"], own)
    with pytest.raises(ValueError, match=r"SequenceClassifierOutput with 'logits' \(2, 3\)"):
        AdaptedModel(model, "scores", "inputs_embeds")(embeddings)

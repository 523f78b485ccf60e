"""Models of the `transformers` package, with random weights."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import NoDefense, OptimalNoise
from gradveil.attacks import SpanCheck, observe
from gradveil.messages import TokenGradient
from gradveil.models import next_token_loss
from gradveil.scoring import score_tokens
from tests.text import generator, sequences

transformers = pytest.importorskip("transformers")
TOKENS = 80


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids).logits


def built(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        if name == "gpt2":
            config = transformers.GPT2Config(
                vocab_size=TOKENS, n_embd=32, n_layer=2, n_head=2, n_positions=16,
                bos_token_id=1, eos_token_id=2,
            )  # fmt: skip
            return Logits(transformers.GPT2LMHeadModel(config)).eval()
        config = transformers.BertConfig(
            vocab_size=TOKENS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=16, num_labels=2,
        )  # fmt: skip
        return Logits(transformers.BertForSequenceClassification(config)).eval()


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_defended_and_attacked(name):
    causal, model, ids = name == "gpt2", built(name), 1 + sequences(2, 5, tokens=TOKENS - 1)
    targets = ids if causal else torch.tensor([0, 1])
    loss_fn = next_token_loss if causal else cross_entropy
    message = TokenGradient(model, loss_fn, targets)
    (table,) = message.tables(ids)
    levels = OptimalNoise(0.1).respond(message, ids, generator()).mechanism.std[table]
    torch.testing.assert_close(levels, levels[:1].expand_as(levels))
    classes = TOKENS if causal else 2
    observation = observe(model, loss_fn, (ids, targets), NoDefense(), num_classes=classes)
    found = SpanCheck()(observation, generator())
    assert score_tokens(found, ids).summary()["accuracy"] == 1

"""Small models of tokens, and batches of ids for them."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil.messages import TokenGradient
from gradveil.models import TokenTransformer, next_token_loss

TOKENS, CLASSES = 30, 3


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def transformer(causal: bool, width: int = 16, depth: int = 2, tokens: int = TOKENS) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return TokenTransformer(
            tokens, 8, width, depth, heads=2, num_classes=CLASSES, causal=causal
        ).eval()


def sequences(count: int, length: int = 5, seed: int = 0, tokens: int = TOKENS) -> Tensor:
    return torch.randint(tokens, (count, length), generator=generator(seed))


def message_of(causal: bool, ids: Tensor, model: nn.Module | None = None) -> TokenGradient:
    model = transformer(causal) if model is None else model
    if causal:
        return TokenGradient(model, next_token_loss, ids)
    return TokenGradient(model, cross_entropy, torch.arange(len(ids)) % CLASSES)


class Columns(nn.Module):
    """Each column of integers in a table of its own, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(4, 3), nn.Embedding(6, 2)
        self.bias = nn.Embedding(6, 1)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        rows = torch.cat([self.first(ids[:, 0]), self.second(ids[:, 1])], 1)
        scores: Tensor = self.head(rows.tanh()) + self.bias(ids[:, 1])
        return scores

"""Transformers of image patches and of tokens."""

import torch
from torch import Tensor, nn

from gradveil._checks import WrongValue, check_flag

from ._networks import check_counts


class Block(nn.Module):
    """Attention and a perceptron, each after a LayerNorm and beside a shortcut.

    In a causal one tokens see only those before them and themselves.
    """

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of the same shape."""
        attended: Tensor = x + self.project(self._attend(self.qkv(self.norm1(x))))
        transformed: Tensor = attended + self.mlp(self.norm2(attended))
        return transformed

    def _attend(self, qkv: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if self.causal:
            ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(ones.triu(1), -torch.inf)
        mixed: Tensor = (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2)
        return mixed


class PatchTransformer(nn.Module):
    """Patches → linear embedding + positions → pre-norm transformer blocks → mean → linear.

    Written with plain linear layers, so that every derivative that the estimators need exists.

    Args:
        width: Size of a token.
        depth, heads: Blocks, and attention heads in each.
        patch, image: Sides of a patch and of the square images, in pixels.

    >>> model = PatchTransformer(width=8, depth=1, heads=2, patch=4, image=8, num_channels=1)
    >>> model(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        patch: int = 4,
        image: int = 32,
        num_channels: int = 3,
        num_classes: int = 10,
    ) -> None:
        super().__init__()
        check_counts(width=width, depth=depth, heads=heads, patch=patch, image=image)
        check_counts(num_channels=num_channels, num_classes=num_classes)
        if width % heads or image < patch:
            found = f"`{heads = }`, `{width = }`, `{patch = }`, `{image = }`"
            expected = "divide `width` and fit into `image`"
            raise WrongValue("Parameters `heads` and `patch`", expected, found)
        self.patches = nn.Unfold(patch, stride=patch)
        self.embed = nn.Linear(num_channels * patch**2, width)
        self.positions = nn.Parameter(0.02 * torch.randn((image // patch) ** 2, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        tokens = self.embed(self.patches(x).transpose(1, 2)) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return scores


class TokenTransformer(nn.Module):
    """Token + position embeddings → pre-norm transformer blocks → scores.

    A causal one returns the scores of the next token in every place, shape (batch, length, tokens);
    `next_token_loss` is its loss, with the ids themselves as targets. All others return the scores
    of classes, from the mean over the places.

    Args:
        tokens: Size of the vocabulary.
        length: The most tokens in a sequence.
        width: Size of an embedding.
        depth, heads: Blocks, and attention heads in each.
        num_classes: Of a classifier.
        causal: Whether it is a language model.

    >>> TokenTransformer(tokens=20, length=4, causal=True)(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 20])
    """

    def __init__(
        self,
        tokens: int = 1000,
        length: int = 32,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        num_classes: int = 2,
        causal: bool = False,
    ) -> None:
        super().__init__()
        check_counts(tokens=tokens, length=length, width=width, depth=depth, heads=heads)
        check_counts(num_classes=num_classes)
        check_flag(causal, "causal")
        if width % heads:
            raise WrongValue("heads", "divide `width`", f"`{heads = }`, `{width = }`")
        self.causal = causal
        self.embed, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads, causal) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens if causal else num_classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores for a batch of sequences of ids."""
        places = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.norm(self.blocks(self.embed(ids) + self.positions(places)))
        scores: Tensor = self.head(hidden if self.causal else hidden.mean(1))
        return scores


def next_token_loss(scores: Tensor, ids: Tensor) -> Tensor:
    """The mean cross-entropy of each token but the first, given those before it.

    >>> float(next_token_loss(torch.zeros(1, 3, 4), torch.tensor([[1, 2, 3]]))) == torch.log(
    ...     torch.tensor(4.0)
    ... )
    tensor(True)
    """
    return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

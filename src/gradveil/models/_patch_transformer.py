"""A small vision transformer, for measuring how costs grow with the model."""

import torch
from torch import Tensor, nn

from gradveil._checks import check_count


class PatchTransformer(nn.Module):
    """Patches → linear embedding + positions → pre-norm transformer blocks → mean → linear.

    Written with plain linear layers, so that every derivative that the estimators need exists.

    Args:
        width: Size of a token.
        depth: Number of blocks.
        heads: Attention heads in each block.
        patch: Side of a patch, in pixels.
        image: Side of the square images.
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
        numbers = {
            "width": width, "depth": depth, "heads": heads, "patch": patch, "image": image,
            "num_channels": num_channels, "num_classes": num_classes,
        }  # fmt: skip
        for name, number in numbers.items():
            check_count(number, name)
        if width % heads or image < patch:
            raise ValueError(
                "Parameters `heads` and `patch` should divide `width` and fit into `image`. Found"
                f" `heads = {heads}`, `width = {width}`, `patch = {patch}`, `image = {image}`."
            )
        self.patches = nn.Unfold(patch, stride=patch)
        self.embed = nn.Linear(num_channels * patch**2, width)
        self.positions = nn.Parameter(0.02 * torch.randn((image // patch) ** 2, width))
        self.blocks = nn.Sequential(*[_Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        tokens = self.embed(self.patches(x).transpose(1, 2)) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return scores


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        attended: Tensor = x + self.project(self._attend(self.qkv(self.norm1(x))))
        transformed: Tensor = attended + self.mlp(self.norm2(attended))
        return transformed

    def _attend(self, qkv: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        weights = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
        mixed: Tensor = (weights @ v).transpose(1, 2).flatten(2)
        return mixed

"""A small vision transformer, for measuring how costs grow with the model."""

import torch
from torch import Tensor, nn

from gradveil._checks import check_count
from gradveil.models._block import Block


class PatchTransformer(nn.Module):
    """Patches → linear embedding + positions → pre-norm transformer blocks → mean → linear.

    Written with plain linear layers, so that every derivative that the estimators need exists.

    Args:
        width: Size of a token.
        depth: Number of blocks.
        heads: Attention heads in each block.
        patch: Side of a patch, in pixels.
        image: Side of the square images.

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
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        tokens = self.embed(self.patches(x).transpose(1, 2)) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return scores

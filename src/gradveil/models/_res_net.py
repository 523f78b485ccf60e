"""A ResNet of 18 layers for small images."""

from torch import Tensor, nn

from gradveil._checks import check_count


class ResNet(nn.Module):
    """ResNet-18 with a first convolution of 3x3 and no first pool, as usual for CIFAR-10.

    Four stages of two blocks have 1, 2, 4 and 8 times `width` channels; each but the first halves
    the image. With the usual width of 64 and 10 classes there are 11,173,962 parameters. In
    training mode BatchNorm mixes the examples of a batch: `build_model` returns it in eval mode.

    Reference: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.

    Args:
        width: Channels of the first stage.
        num_classes: Number of logits.
        num_channels: Channels of the input images.

    >>> import torch
    >>> ResNet(width=4).eval()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, width: int = 64, num_classes: int = 10, num_channels: int = 3) -> None:
        super().__init__()
        check_count(width, "width")
        check_count(num_classes, "num_classes")
        check_count(num_channels, "num_channels")
        self.stem = nn.Sequential(
            nn.Conv2d(num_channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(4):
            for stride in (1 if stage == 0 else 2, 1):
                blocks.append(_Residual(channels, width << stage, stride))
                channels = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(inputs)).mean((-2, -1)))
        return logits


class _Residual(nn.Module):
    """Two convolutions beside a shortcut, which is one of 1x1 where shapes change."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        changes = stride != 1 or in_channels != out_channels
        self.shortcut = (
            nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )
            if changes
            else nn.Identity()
        )
        self.activation = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.activation(self.path(inputs) + self.shortcut(inputs))
        return outputs

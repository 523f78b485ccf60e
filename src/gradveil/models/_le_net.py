"""The small smooth network on which DLG was shown."""

from collections.abc import Sequence

from torch import Tensor, nn

from gradveil._batches import check_shape
from gradveil._checks import check_count, check_positive
from gradveil.models._activations import build_activation


class LeNet(nn.Module):
    """Three 5x5 convolutions of 12 channels and one linear layer, smooth, with large weights.

    The variant of LeNet of "Deep Leakage from Gradients": no pooling (the first two convolutions
    have stride 2), a twice differentiable activation, all parameters uniform in [-scale, scale],
    so that second derivatives exist and do not vanish. For 3x32x32 images and 10 classes there are
    15,826 parameters.

    Reference: Zhu, Liu and Han, "Deep Leakage from Gradients", NeurIPS 2019.

    Args:
        num_classes: Number of logits.
        input_shape: Channels, height and width of the images.
        activation: `"sigmoid"` (DLG's), `"tanh"`, or another known name.
        scale: Bound of the uniform initial parameters.

    >>> import torch
    >>> LeNet()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int = 10,
        input_shape: Sequence[int] = (3, 32, 32),
        activation: str = "sigmoid",
        scale: float = 0.5,
    ) -> None:
        super().__init__()
        check_count(num_classes, "num_classes")
        check_shape(input_shape, "input_shape")
        check_positive(scale, "scale")
        if len(input_shape) != 3:
            raise ValueError(
                "Parameter `input_shape` should hold channels, height and width. Found"
                f" `input_shape = {tuple(input_shape)}`. Use an `mlp` for tables."
            )
        channels, height, width = input_shape
        self.body = nn.Sequential(
            nn.Conv2d(channels, 12, kernel_size=5, padding=2, stride=2),
            build_activation(activation),
            nn.Conv2d(12, 12, kernel_size=5, padding=2, stride=2),
            build_activation(activation),
            nn.Conv2d(12, 12, kernel_size=5, padding=2),
            build_activation(activation),
            nn.Flatten(),
        )
        self.head = nn.Linear(12 * _quarter(height) * _quarter(width), num_classes)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -scale, scale)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(inputs))
        return logits


def _quarter(size: int) -> int:
    """The size after two convolutions of stride 2."""
    return (size + 3) // 4

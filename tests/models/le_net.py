"""DLG's network, which is smooth: attacks with second derivatives are tested on it."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from gradveil.models import build_model
from gradveil.models._networks import _ACTIVATIONS

PATH = "tests.models.le_net:LeNet"


def le_net(seed: int = 0, **options: Any) -> nn.Module:
    """A new one, its weights a function of the seed."""
    return build_model(PATH, seed, allow_imports=True, **options)


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
    """

    def __init__(
        self,
        num_classes: int = 10,
        input_shape: Sequence[int] = (3, 32, 32),
        activation: str = "sigmoid",
        scale: float = 0.5,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.body = nn.Sequential(
            nn.Conv2d(channels, 12, kernel_size=5, padding=2, stride=2),
            _ACTIVATIONS[activation](),
            nn.Conv2d(12, 12, kernel_size=5, padding=2, stride=2),
            _ACTIVATIONS[activation](),
            nn.Conv2d(12, 12, kernel_size=5, padding=2),
            _ACTIVATIONS[activation](),
            nn.Flatten(),
        )
        quarters = (height + 3) // 4, (width + 3) // 4  # after two convolutions of stride 2
        self.head = nn.Linear(12 * quarters[0] * quarters[1], num_classes)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -scale, scale)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(inputs))
        return logits

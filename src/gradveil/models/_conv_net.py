"""The ConvNet of "Inverting Gradients", which the paper uses for CIFAR-10."""

from torch import Tensor, nn

from gradveil._checks import check_count
from gradveil.models._activations import build_activation

_POOL = 0  # marks a max-pool in the list of widths below
_WIDTHS = (1, 2, 2, 4, 4, 4, _POOL, 4, 4, _POOL)  # in units of `width`


class ConvNet(nn.Module):
    """Eight 3x3 convolutions with BatchNorm, two max-pools of 3, one linear layer.

    In units of `width` the convolutions have 1, 2, 2, 4, 4, 4, (pool), 4, 4, (pool) output
    channels; the linear layer reads the remaining 3x3 maps. For 3x32x32 images that makes
    2,904,970 parameters at the paper's width of 64, and 187,114 at width 16, for quick runs.

    Use it in `eval()` mode, as the paper does (and as `build_model`
    returns it): in train mode BatchNorm mixes the examples of a batch and keeps statistics of the
    private data.

    Reference: Geiping et al., "Inverting Gradients - How easy is it to break privacy in federated
    learning?", NeurIPS 2020.

    Args:
        width: Channels of the first convolution.
        num_classes: Number of logits.
        num_channels: Channels of the input images, of 32x32 (or 28x28) pixels.
        activation: `"leaky_relu"` (the paper's) or `"relu"`; any known name works.

    >>> import torch
    >>> ConvNet(width=4).eval()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        width: int = 64,
        num_classes: int = 10,
        num_channels: int = 3,
        activation: str = "leaky_relu",
    ) -> None:
        super().__init__()
        check_count(width, "width")
        check_count(num_classes, "num_classes")
        check_count(num_channels, "num_channels")
        layers: list[nn.Module] = []
        channels = num_channels
        for multiple in _WIDTHS:
            if multiple == _POOL:
                layers.append(nn.MaxPool2d(3))
            else:
                layers += _block(channels, multiple * width, activation)
                channels = multiple * width
        self.conv_layers = nn.Sequential(*layers)
        self.fc_layers = nn.Sequential(nn.Flatten(), nn.Linear(channels * 3 * 3, num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.fc_layers(self.conv_layers(inputs))
        return logits


def _block(in_channels: int, out_channels: int, activation: str) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1),
        nn.BatchNorm2d(out_channels),
        build_activation(activation),
    ]

"""The paper's CNN for MNIST."""

from torch import Tensor, nn

from gradveil._checks import check_count


class SimpleConvNet(nn.Module):
    """The CNN of the paper's MNIST experiments: two convolutions, two linear layers, LeakyReLU.

    Each 3x3 convolution keeps the image's size and is followed by a max-pool of 2, so that 28x28
    images leave the convolutions as 64 maps of 7x7. With the default arguments there are 119,530
    parameters. The submodules are named as in the paper's appendix (`conv_layers.0`,
    `conv_layers.3`, `fc_layers.1`, `fc_layers.3`), so that its tables can be compared.

    Args:
        num_classes: Number of logits.
        num_channels: Channels of the 28x28 input images.

    >>> import torch
    >>> SimpleConvNet()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, num_classes: int = 10, num_channels: int = 1) -> None:
        super().__init__()
        check_count(num_classes, "num_classes")
        check_count(num_channels, "num_channels")
        self.conv_layers = nn.Sequential(
            nn.Conv2d(num_channels, 32, kernel_size=3, padding=1),
            nn.LeakyReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.LeakyReLU(),
            nn.MaxPool2d(2),
        )
        self.fc_layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 32),
            nn.LeakyReLU(),
            nn.Linear(32, num_classes),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.fc_layers(self.conv_layers(inputs))
        return logits

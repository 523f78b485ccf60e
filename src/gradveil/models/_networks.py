"""Networks for images and tables: the paper's, ResNet, a perceptron."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from gradveil._checks import WrongValue, check_choice, check_count

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}


def check_counts(**numbers: int) -> None:
    """Require integers of at least 1, each by its name."""
    for name, number in numbers.items():
        check_count(number, name)


class ConvNet(nn.Module):
    """Eight 3x3 convolutions with BatchNorm, two max-pools of 3, one linear layer.

    In units of `width` the convolutions have 1, 2, 2, 4, 4, 4, (pool), 4, 4, (pool) output
    channels. For 3x32x32 images that makes 2,904,970 parameters at the paper's width of 64, and
    187,114 at width 16. Use it in `eval()` mode, as the paper does and `build_model` returns it: in
    train mode BatchNorm mixes the examples of a batch and keeps statistics of the private data.

    Reference: Geiping et al., "Inverting Gradients - How easy is it to break privacy in federated
    learning?", NeurIPS 2020.

    >>> import torch
    >>> ConvNet(width=4).eval()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        width: int = 64,
        num_classes: int = 10,
        num_channels: int = 3,
    ) -> None:
        super().__init__()
        check_counts(width=width, num_classes=num_classes, num_channels=num_channels)
        layers: list[nn.Module] = []
        channels = num_channels
        for multiple in (1, 2, 2, 4, 4, 4, 0, 4, 4, 0):  # 0: a pool
            if not multiple:
                layers.append(nn.MaxPool2d(3))
                continue
            layers += [
                nn.Conv2d(channels, multiple * width, kernel_size=3, padding=1),
                nn.BatchNorm2d(multiple * width),
                nn.LeakyReLU(),
            ]
            channels = multiple * width
        self.conv_layers = nn.Sequential(*layers)
        self.fc_layers = nn.Sequential(nn.Flatten(), nn.Linear(channels * 3 * 3, num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.fc_layers(self.conv_layers(inputs))
        return logits


class SimpleConvNet(nn.Module):
    """The CNN of the paper's MNIST experiments: two convolutions, two linear layers, LeakyReLU.

    For images of 28x28 pixels; 119,530 parameters. The submodules are named as in the paper's
    appendix (`conv_layers.0`, `conv_layers.3`, `fc_layers.1`, `fc_layers.3`), so that its tables
    can be compared.

    >>> import torch
    >>> SimpleConvNet()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, num_classes: int = 10, num_channels: int = 1) -> None:
        super().__init__()
        check_counts(num_classes=num_classes, num_channels=num_channels)
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


class ResNet(nn.Module):
    """ResNet-18 with a first convolution of 3x3 and no first pool, as usual for CIFAR-10.

    Four stages of two blocks have 1, 2, 4 and 8 times `width` channels; each but the first halves
    the image. With the usual width of 64 and 10 classes there are 11,173,962 parameters. In
    training mode BatchNorm mixes the examples of a batch: `build_model` returns it in eval mode.

    Reference: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.

    >>> import torch
    >>> ResNet(width=4).eval()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, width: int = 64, num_classes: int = 10, num_channels: int = 3) -> None:
        super().__init__()
        check_counts(width=width, num_classes=num_classes, num_channels=num_channels)
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


class MLP(nn.Module):
    """Linear layers of the given sizes with an activation between them; inputs are flattened.

    Args:
        sizes: Number of inputs, of each hidden layer's units, and of logits.
        activation: `"tanh"` (smooth, hence good for tests of derivatives), `"relu"`,
            `"leaky_relu"`, `"gelu"`, `"sigmoid"` or `"softplus"`.

    >>> import torch
    >>> MLP([4, 8, 3])(torch.zeros(5, 2, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(self, sizes: Sequence[int], activation: str = "tanh") -> None:
        super().__init__()
        whole = isinstance(sizes, (list, tuple)) and all(type(size) is int for size in sizes)
        if not whole or len(sizes) < 2 or min(sizes) < 1:
            expected = "hold at least two positive sizes, of inputs first and of logits last"
            raise WrongValue("sizes", expected, str(sizes), "Try `[784, 32, 10]`.", True)
        check_choice(activation, "activation", _ACTIVATIONS)
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), _ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers[:-1])  # no activation on the logits

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layers(inputs)
        return logits

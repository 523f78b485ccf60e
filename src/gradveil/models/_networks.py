"""Networks for images, tables and text: the paper's, ResNet, perceptrons, transformers; PRECODE."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from gradveil._checks import (
    WrongValue,
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_seed,
)

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
    """

    def __init__(self, width: int = 64, num_classes: int = 10, num_channels: int = 3) -> None:
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

    `patch` and `image` are the sides of a patch and of the square images, in pixels.
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
    of classes, from the mean over the places. A vocabulary has so many `tokens`, a sequence at most
    `length` of them.

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


class VariationalBottleneck(nn.Module):
    """h ↦ D(μ + σ ⊙ ε) with (μ, s) = E(h), σ = softplus(s) and ε ~ N(0, I); E and D are linear.

    In training mode ε comes from torch's global generator, as dropout does. In eval mode it is a
    function of `seed` and of its shape, so that whoever has the model knows it; 0 without a seed.
    """

    def __init__(self, features: int, size: int, seed: int | None = 0) -> None:
        super().__init__()
        check_count(size, "size")
        if seed is not None:
            check_seed(seed, "noise_seed")
        self.encoder = nn.Linear(features, 2 * size)
        self.decoder = nn.Linear(size, features)
        self.seed = seed

    def forward(self, inputs: Tensor) -> Tensor:
        mean, spread = self.encoder(inputs).chunk(2, dim=-1)
        decoded: Tensor = self.decoder(mean + softplus(spread) * self._noise(mean))
        return decoded

    def _noise(self, like: Tensor) -> Tensor:
        if self.training:
            return torch.randn_like(like)
        if self.seed is None:
            return torch.zeros_like(like)
        drawn = np.random.default_rng(self.seed).standard_normal(tuple(like.shape))
        return torch.from_numpy(drawn).to(like)  # not torch's: attacks call this inside of `vmap`


def with_bottleneck(
    model: nn.Module, size: int = 32, *, noise_seed: int | None = 0, seed: int = 0
) -> nn.Module:
    """A copy of a model with a variational bottleneck before its last linear layer.

    After PRECODE (Scheliga, Mäder and Seeland 2022, arXiv:2108.04725), which changes the model and
    not the message; so it is no defense that an audit lists, but a model to audit. The authors add
    the divergence of N(μ, σ²) from N(0, I) to the loss, with a small weight: that is left out here.

    Guarantee: none. The noise acts behind the layers that read the inputs, and an attacker attacks
    the model as it is; the authors themselves break it by leaving out what comes behind the noise
    (Scheliga et al. 2022, arXiv:2208.04767). In eval mode the attacker knows ε, the worst case. To
    see what one reaches who does not, give it the copy with `noise_seed=None`, which has the same
    weights and the mean of ε; freeze bottleneck and last layer in it to leave these out.

    The seed is that of the bottleneck's initial weights, `noise_seed` that of ε in eval mode, where
    ε = 0 if it is `None`.

    >>> layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).eval()
    >>> [name for name, _ in with_bottleneck(layers, size=3).named_parameters()][2:5]
    ['2.0.encoder.weight', '2.0.encoder.bias', '2.0.decoder.weight']
    """
    check_kind(model, "model", nn.Module, "Use for example `build_model('simple-conv-net')`.")
    check_seed(seed)
    changed = deepcopy(model)
    linear = [(n, m) for n, m in changed.named_modules() if isinstance(m, nn.Linear)]
    if not linear or not linear[-1][0]:
        expected = "have a linear layer inside, before which the bottleneck goes"
        raise WrongValue("model", expected, f"none in {type(model).__name__}")
    name, last = linear[-1]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        bottleneck = VariationalBottleneck(last.in_features, size, noise_seed)
    parent, _, own = name.rpartition(".")
    wrapped = nn.Sequential(bottleneck.to(last.weight), last)
    setattr(changed.get_submodule(parent), own, wrapped.train(last.training))
    return changed

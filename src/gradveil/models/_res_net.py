"""Residual networks, and a bottleneck in front of a head."""

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from gradveil._checks import check_count, check_kind, check_seed


class Block(nn.Module):
    """Attention and a perceptron, each after a LayerNorm and beside a shortcut.

    Args:
        width: Size of a token.
        heads: Attention heads.
        causal: Whether tokens see only those before them and themselves.
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


class VariationalBottleneck(nn.Module):
    """h ↦ D(μ + σ ⊙ ε) with (μ, s) = E(h), σ = softplus(s) and ε ~ N(0, I); E and D are linear.

    In training mode ε comes from torch's global generator, as dropout does. In eval mode it is a
    function of `seed` and of its shape, so that whoever has the model knows it.

    Args:
        features: Of h, and of what comes out.
        size: Of μ.
        seed: Of ε in eval mode; `None`: ε = 0 there.

    >>> VariationalBottleneck(features=8, size=2)(torch.zeros(3, 8)).shape
    torch.Size([3, 8])
    """

    def __init__(self, features: int, size: int, seed: int | None = 0) -> None:
        super().__init__()
        check_count(features, "features")
        check_count(size, "size")
        if seed is not None:
            check_seed(seed)
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

    Args:
        model: Any module with a linear layer; it is not changed.
        size: Of the bottleneck.
        noise_seed: Of ε in eval mode; `None`: ε = 0 there.
        seed: Of the bottleneck's initial weights.

    >>> layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).eval()
    >>> [name for name, _ in with_bottleneck(layers, size=3).named_parameters()][2:5]
    ['2.0.encoder.weight', '2.0.encoder.bias', '2.0.decoder.weight']
    """
    check_kind(model, "model", nn.Module, "Use for example `build_model('simple-conv-net')`.")
    check_seed(seed)
    changed = deepcopy(model)
    linear = [(n, m) for n, m in changed.named_modules() if isinstance(m, nn.Linear)]
    if not linear or not linear[-1][0]:
        raise ValueError(
            "Parameter `model` should have a linear layer inside, before which the bottleneck goes."
            f" Found none in {type(model).__name__}."
        )
    name, last = linear[-1]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        bottleneck = VariationalBottleneck(last.in_features, size, noise_seed)
    parent, _, own = name.rpartition(".")
    wrapped = nn.Sequential(bottleneck.to(last.weight), last)
    setattr(changed.get_submodule(parent), own, wrapped.train(last.training))
    return changed

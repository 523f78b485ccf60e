"""A variational bottleneck in front of a model's head."""

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from gradveil._checks import WrongValue, check_count, check_kind, check_seed


class VariationalBottleneck(nn.Module):
    """h ↦ D(μ + σ ⊙ ε) with (μ, s) = E(h), σ = softplus(s) and ε ~ N(0, I); E and D are linear.

    In training mode ε comes from torch's global generator, as dropout does. In eval mode it is a
    function of `seed` and of its shape, so that whoever has the model knows it; 0 without a seed.

    >>> VariationalBottleneck(features=8, size=2)(torch.zeros(3, 8)).shape
    torch.Size([3, 8])
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

"""Small models with data and a loss: the ones that break assumptions.

>>> case = named("mlp")
>>> sorted(case.message()(case.inputs()))
['0.bias', '0.weight', '2.bias', '2.weight']
>>> all(other.separable for other in SEPARABLE), any(other.separable for other in COUPLED)
(True, False)
"""

import copy
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradveil import GradientMessage, LocalUpdateMessage

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Case:
    """A named model with inputs, targets and a loss; all of it a function of the name alone.

    Every call builds anew, so that a test may do what it likes with what it gets.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    """Of the inputs, examples first."""
    loss_fn: Loss = F.cross_entropy
    targets_of: Callable[[int, torch.Generator], Any] | None = None
    """(examples, generator) to targets; labels of three classes if `None`."""
    separable: bool = True
    """Whether examples enter the gradient as a sum."""
    inputs_of: Callable[..., Tensor] | None = None
    """Like `torch.randn`, which is taken if `None`."""

    def model(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._seed)
            return self.build().to(dtype)

    def inputs(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
        """Normal numbers, unless told: no ties in max-pooling, no kink of a ReLU hit."""
        generator = torch.Generator().manual_seed(self._seed + 1 + seed)
        draw = self.inputs_of or torch.randn
        return draw(self.shape, generator=generator, dtype=torch.float64).to(dtype)

    def targets(self, dtype: torch.dtype = torch.float64) -> Any:
        generator = torch.Generator().manual_seed(self._seed - 1)
        made = (self.targets_of or labels)(self.shape[0], generator)
        return made.to(dtype) if isinstance(made, Tensor) and made.is_floating_point() else made

    def loss(self, dtype: torch.dtype = torch.float64) -> Loss:
        """The loss, with its own tensors (class weights) in that dtype."""
        if isinstance(self.loss_fn, nn.Module):
            return copy.deepcopy(self.loss_fn).to(dtype)
        if isinstance(self.loss_fn, partial) and "weight" in self.loss_fn.keywords:
            return partial(self.loss_fn, weight=self.loss_fn.keywords["weight"].to(dtype))
        return self.loss_fn

    def message(self, dtype: torch.dtype = torch.float64, **options: Any) -> GradientMessage:
        return GradientMessage(self.model(dtype), self.loss(dtype), self.targets(dtype), **options)

    def local_update(
        self, dtype: torch.dtype = torch.float64, **options: Any
    ) -> LocalUpdateMessage:
        options = {"lr": 0.1, "steps": 2, **options}
        return LocalUpdateMessage(
            self.model(dtype), self.loss(dtype), self.targets(dtype), **options
        )

    @property
    def _seed(self) -> int:
        return zlib.crc32(self.name.encode()) % 2**31 + 1

    def __str__(self) -> str:
        return self.name


# ------------------------------------------------------------------------------ inputs and targets


def digits(shape: tuple[int, ...], **options: Any) -> Tensor:
    """A stroke on a constant background, as MNIST's, with a little noise.

    Without the noise, max-pooling has exact ties, where second derivatives are one-sided.
    """
    images = torch.full(shape, -0.42, dtype=torch.float64)
    images[..., 1:-1, shape[-1] // 2] = 2.8
    return images + 0.01 * torch.randn(shape, **options)


def labels(count: int, generator: torch.Generator, classes: int = 3) -> Tensor:
    return torch.randint(classes, (count,), generator=generator)


def values(*shape: int) -> Callable[[int, torch.Generator], Tensor]:
    """Normal targets of that shape for each example."""
    return lambda count, generator: torch.randn(
        count, *shape, generator=generator, dtype=torch.float64
    )


def token_labels(count: int, generator: torch.Generator) -> Tensor:
    """One of three classes for each of three tokens."""
    return torch.randint(3, (count, 3), generator=generator)


def shares(count: int, generator: torch.Generator) -> Tensor:
    """A probability for each of three classes."""
    return torch.rand(count, 3, generator=generator, dtype=torch.float64).softmax(1)


def nothing(count: int, generator: torch.Generator) -> None:
    return None


# ----------------------------------------------------------------------------------------- losses

WEIGHTS = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)


def custom_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A sum over examples that no signature gives away."""
    return (outputs.logsumexp(1) - outputs.gather(1, targets[:, None])[:, 0]).square().mean()


def contrastive_loss(outputs: Tensor, targets: Any) -> Tensor:
    """Every example against every other one (InfoNCE with itself as the positive)."""
    directions = F.normalize(outputs, dim=1)
    return F.cross_entropy(directions @ directions.T / 0.5, torch.arange(len(outputs)))


def pair_loss(outputs: Tensor, targets: Any) -> Tensor:
    """The first half against the second: example b meets example b + n/2 alone."""
    first, second = outputs.chunk(2)
    return (first - second).square().mean()


def variance_loss(outputs: Tensor, targets: Any) -> Tensor:
    """The spread over the batch, of a size that an absolute tolerance would take for nothing."""
    return 1e-8 * outputs.var(0).sum()


# ----------------------------------------------------------------------------------------- models


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.Tanh, **options: Any) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after, **options), activation()]
    return nn.Sequential(*layers[:-1]).eval()


def conv_net() -> nn.Module:
    """What the paper's CNN is made of: convolution, LeakyReLU, max-pooling, linear."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.LeakyReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(27, 3),
    ).eval()


def batch_norm_net(**options: Any) -> nn.Sequential:
    """BatchNorm with running statistics far from their initial 0 and 1, and average pooling."""
    norm = nn.BatchNorm2d(3, **options)
    if norm.running_mean is not None and norm.running_var is not None:
        norm.running_mean.copy_(torch.randn(3))
        norm.running_var.copy_(0.5 + torch.rand(3))
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), norm, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    )


def group_norm_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(64, 3)
    ).eval()


class Attention(nn.Module):
    """Continuous tokens with a learned position each, attention, the mean token."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(3, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        placed = tokens + self.positions
        mixed, _ = self.attention(placed, placed, placed)
        return self.head(mixed.mean(1))


class Tagger(nn.Module):
    """One row of logits for each token, classes before tokens as cross_entropy wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp(4, 4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(tokens).transpose(1, 2)


class MeanToken(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.mean(1)


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        4, 2, dim_feedforward=6, dropout=0.0, activation="gelu", batch_first=True
    )
    return nn.Sequential(layer, MeanToken(), nn.Linear(4, 3)).eval()


class SoftEmbedding(nn.Module):
    """Mixtures of embeddings, the weights of the mixture being the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, logits: Tensor) -> Tensor:
        return self.head((logits.softmax(-1) @ self.embedding.weight).mean(1))


class TiedAutoencoder(nn.Module):
    """Two layers of one weight: it has two names and one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.encoder(inputs)))


def weight_norm_mlp() -> nn.Module:
    """A weight computed from a length and a direction, which are what learns."""
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))).eval()


def frozen_mlp() -> nn.Module:
    """The first weight and the last bias do not learn."""
    model = mlp(5, 6, 3)
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


class Unused(nn.Module):
    """A layer that is never called: its gradient and its sensitivity are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.used = mlp(5, 4, 3)
        self.idle = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.used(inputs)


class Transposed(nn.Module):
    """A weight that is used through one of its properties."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 0.5, 20).view(4, 5))
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(inputs @ self.weight.T))


def module_twice() -> nn.Module:
    """One module in two places: its parameters have two names in one owner."""
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(5, 3)).eval()


class MadeBias(nn.Module):
    """A bias that is computed from a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 12), nn.Linear(12, 3, bias=False)
        self.log_bias = nn.Parameter(torch.linspace(-1, 0.5, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        return F.linear(hidden, self.second.weight, self.log_bias.exp())


class Token(nn.Module):
    """A learned token that is the input of a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.linspace(-1, 1, 4).view(1, 4))
        self.gate, self.body, self.head = nn.Linear(4, 12), nn.Linear(5, 12), nn.Linear(12, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(inputs)) * torch.sigmoid(self.gate(self.token)))


class Scaled(nn.Module):
    """A temperature and an offset of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(5, 3)
        self.log_temperature = nn.Parameter(torch.tensor(0.3))
        self.offset = nn.Parameter(torch.tensor(-0.2))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.body(inputs) + self.offset) * self.log_temperature.exp()


class Recurrent(nn.Module):
    """One cell applied at every time step: its weights enter the gradient again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, sequence: Tensor) -> Tensor:
        state = sequence.new_zeros(len(sequence), 4)
        for step in sequence.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class GRUNet(nn.Module):
    """A recurrent layer that PyTorch runs as one operation."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.head(self.gru(sequence)[0][:, -1])


class TwoHeads(nn.Module):
    """Outputs that are a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = mlp(5, 4), mlp(4, 3), mlp(4, 3)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.body(inputs))
        return self.first(hidden), self.second(hidden)


class CentredOnBatch(nn.Module):
    """A user's own layer that mixes examples in every mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(5, 4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs)
        return hidden - hidden.mean(0)


class FunctionalDropout(nn.Module):
    """Dropout that no submodule gives away, and that draws in every mode."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.body, self.head, self.always = mlp(5, 8), mlp(8, 3), always

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(inputs))
        return self.head(F.dropout(hidden, 0.5, training=self.training or self.always))


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)).train()


# ---------------------------------------------------------------------------------------- the zoo

IMAGES, ROWS, TOKENS = (3, 1, 6, 6), (4, 5), (3, 3, 4)

SEPARABLE = (
    Case("mlp", partial(mlp, 5, 6, 3), ROWS),
    Case("conv_net", conv_net, IMAGES),
    Case("one_example", conv_net, (1, 1, 6, 6)),
    Case("digits", conv_net, IMAGES, inputs_of=digits),
    Case("relu_in_place", partial(mlp, 5, 8, 3, activation=partial(nn.ReLU, inplace=True)), ROWS),
    Case("batch_norm_eval", lambda: batch_norm_net().eval(), IMAGES),
    Case("attention", lambda: Attention().eval(), TOKENS),
    Case("transformer", transformer, TOKENS),
    Case("tagger", lambda: Tagger().eval(), TOKENS, F.cross_entropy, token_labels),
    Case("soft_embedding", lambda: SoftEmbedding().eval(), (3, 2, 5)),
    Case("layer_norm", lambda: nn.Sequential(mlp(5, 4), nn.LayerNorm(4), mlp(4, 3)).eval(), ROWS),
    Case("group_norm", group_norm_net, IMAGES),
    Case("tied", lambda: TiedAutoencoder().eval(), (4, 4), F.mse_loss, values(4)),
    Case("module_twice", module_twice, ROWS),
    Case("transposed", lambda: Transposed().eval(), ROWS),
    Case("weight_norm", weight_norm_mlp, ROWS),
    Case("frozen", frozen_mlp, ROWS),
    Case("unused", lambda: Unused().eval(), ROWS),
    Case("scalar", lambda: Scaled().eval(), ROWS),
    Case("made_bias", lambda: MadeBias().eval(), ROWS),
    Case("token", lambda: Token().eval(), ROWS),
    Case("token_of_one_example", lambda: Token().eval(), (1, 5)),
    Case("no_bias", partial(mlp, 5, 4, 3, bias=False), ROWS),
    Case("recurrent", lambda: Recurrent().eval(), (3, 4, 3)),
    Case("gru", lambda: GRUNet().eval(), (3, 4, 3)),
    Case("sum_reduction", partial(mlp, 5, 3), ROWS, nn.CrossEntropyLoss(reduction="sum")),
    Case("weighted", partial(mlp, 5, 3), ROWS, nn.CrossEntropyLoss(weight=WEIGHTS)),
    Case("weighted_partial", partial(mlp, 5, 3), ROWS, partial(F.cross_entropy, weight=WEIGHTS)),
    Case("smoothed", partial(mlp, 5, 3), ROWS, partial(F.cross_entropy, label_smoothing=0.1)),
    Case("soft_targets", partial(mlp, 5, 3), ROWS, F.cross_entropy, shares),
    Case("regression", partial(mlp, 5, 4, 1), ROWS, nn.MSELoss(), values(1)),
    Case("huber", partial(mlp, 5, 4, 2), ROWS, F.huber_loss, values(2)),
    Case("binary", partial(mlp, 5, 1), ROWS, F.binary_cross_entropy_with_logits, values(1)),
    Case("custom_loss", partial(mlp, 5, 4, 3), ROWS, custom_loss),
    Case(
        "lambda_loss", partial(mlp, 5, 4, 3), ROWS, lambda o, _: o.square().square().sum(), nothing
    ),
)

COUPLED = (
    Case("batch_norm_train", lambda: batch_norm_net().train(), IMAGES, separable=False),
    Case(
        "batch_norm_no_statistics",
        lambda: batch_norm_net(track_running_stats=False).eval(),
        IMAGES,
        separable=False,
    ),
    Case("dropout_train", dropout_net, ROWS, separable=False),
    Case("contrastive", partial(mlp, 5, 4, 3), ROWS, contrastive_loss, nothing, separable=False),
    Case("pairs", partial(mlp, 5, 4, 3), ROWS, pair_loss, nothing, separable=False),
    Case("variance", partial(mlp, 5, 4, 3), ROWS, variance_loss, nothing, separable=False),
    Case(
        "two_heads",
        lambda: TwoHeads().eval(),
        ROWS,
        lambda o, t: F.cross_entropy(o[0], t) + o[1].square().mean(),
        separable=False,
    ),
    Case("centred", lambda: CentredOnBatch().eval(), ROWS, separable=False),
    Case(
        "functional_dropout_train",
        lambda: FunctionalDropout(always=False).train(),
        ROWS,
        separable=False,
    ),
    Case(
        "functional_dropout_always",
        lambda: FunctionalDropout(always=True).eval(),
        ROWS,
        separable=False,
    ),
)

ZOO = SEPARABLE + COUPLED


def named(name: str) -> Case:
    """The case of that name."""
    return next(case for case in ZOO if case.name == name)

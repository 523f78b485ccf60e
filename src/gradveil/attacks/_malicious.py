"""Servers that plant a model: `Imprint` sorts the examples, `Fishing` silences all but a few."""

from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from gradveil._checks import (
    WrongValue,
    check_count,
    check_inputs,
    check_kind,
    check_positive,
)
from gradveil._random import generator_or_fresh

from ._analytic import first_layer, reconstruction
from ._attack import Attack, Reconstruction, Search
from ._inverting_gradients import InvertingGradients
from ._labels import labels_or_unknown
from ._observation import Observation, check_observation


def check_planted(observation: Observation, name: str) -> None:
    """Require an observation of a server that may send any model."""
    check_observation(observation)
    if observation.server != "malicious":
        raise WrongValue(
            "observation",
            f"be that of a server that changes the model for {name}",
            f"`observation.server = {observation.server!r}`",
            "Send the model that `plant` makes, and observe it with"
            " `ThreatModel(server='malicious')`.",
        )


class ImprintedNet(nn.Module):
    """f(x + U relu(w·x - c)): all rows of the first layer are w, with the cuts c_1 < c_2 < ...

    Row k is active for the examples with w·x > c_k. All columns of U are the same, so the signal
    that comes back to row k is a number δ_n of the example alone, and the rows' gradients are

        ∂L/∂W_k = Σ_{n: w·x_n > c_k} δ_n x_n,    ∂L/∂b_k = Σ_{n: w·x_n > c_k} δ_n.

    The difference of two neighbouring rows holds the examples of one bin only.

    Args:
        model: The model that the server pretends to train.
        direction: w, one number for each entry of an example.
        cuts: c, ascending.
        amplify: W and b are divided by it and U is multiplied: outputs stay, gradients grow.

    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 2])
    >>> net = ImprintedNet(model, torch.ones(3), torch.tensor([0.5, 1.0]))
    >>> net(torch.ones(1, 3)).shape
    torch.Size([1, 2])
    """

    def __init__(
        self, model: nn.Module, direction: Tensor, cuts: Tensor, amplify: float = 1.0
    ) -> None:
        super().__init__()
        entries, bins = direction.numel(), cuts.numel()
        self.imprint = nn.Linear(entries, bins)
        self.spread = nn.Linear(bins, entries, bias=False)
        self.model = model
        with torch.no_grad():
            self.imprint.weight.copy_((direction.flatten() / amplify).expand(bins, entries))
            self.imprint.bias.copy_(-cuts / amplify)
            self.spread.weight.fill_(amplify / bins)
        self.train(model.training)

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        shifted = flat + self.spread(torch.relu(self.imprint(flat)))
        outputs: Tensor = self.model(shifted.view_as(inputs))
        return outputs


@dataclass(frozen=True)
class Imprint(Attack):
    """A server that plants a sorting layer, and reads the examples off its gradient by division.

    `plant` puts an `ImprintedNet` in front of a model, with cuts at the quantiles of the mean of
    public examples. With the rows in the order of their cuts,

        x̂_k = (∂L/∂W_k - ∂L/∂W_{k+1}) / (∂L/∂b_k - ∂L/∂b_{k+1})

    is the example of bin k: exact if there is one, a mixture if there are several. The bins with
    the largest |∂L/∂b_k - ∂L/∂b_{k+1}| are returned; places without an example are 0.

    Noise of a fixed size does not stop it: the server amplifies the gradient at no cost.
    Clipping (`PrivateNoise`) does, and so does a client that looks at the model first
    (`gradveil.federated.ModelGuard`).

    Reference: Fowl, Geiping, Czaja, Goldblum and Goldstein, "Robbing the Fed: Directly Obtaining
    Private Data in Federated Learning with Modified Models", ICLR 2022.

    Args:
        bins: Rows of the planted layer.
        amplify: How many times larger the planted layer's gradient is.

    >>> from gradveil.models import build_model
    >>> planted = Imprint(bins=4).plant(build_model("mlp", sizes=[3, 2]), torch.rand(16, 3))
    >>> type(planted).__name__
    'ImprintedNet'
    """

    bins: int = 128
    amplify: float = 1.0

    def __post_init__(self) -> None:
        check_count(self.bins, "bins")
        check_positive(self.amplify, "amplify")

    def plant(self, model: nn.Module, public: Tensor) -> ImprintedNet:
        """The model that the server sends out; the public examples tell where to cut."""
        check_kind(model, "model", nn.Module, "Give the model that is trained.")
        check_inputs(public, "public")
        flat = public.flatten(1)
        direction = torch.full_like(flat[0], 1 / flat.shape[1])
        places = (torch.arange(self.bins) + 0.5) / self.bins
        cuts = (flat @ direction).double().quantile(places.double().to(flat.device)).to(flat)
        return ImprintedNet(model, direction, cuts, self.amplify).to(flat)

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack a message of a model that `plant` made."""
        check_planted(observation, "Imprint")
        generator = generator_or_fresh(generator)
        layer = first_layer(observation, generator)
        order = layer.layer.bias.detach().argsort(descending=True)  # the lowest cut first
        weight, bias = (observation.sent[name][order] for name in (layer.weight, layer.bias))
        rows, signals = (p.diff(dim=0, append=torch.zeros_like(p[:1])) for p in (weight, bias))
        found = weight.new_zeros(observation.batch_size, weight.shape[1])
        strongest = signals.abs().argsort(descending=True)[: len(found)]
        # a bin with less of the largest difference holds no example
        strongest = strongest[signals[strongest].abs() > 1e-5 * signals.abs().max()]
        found[: len(strongest)] = rows[strongest] / signals[strongest, None]
        return reconstruction(observation, found, weight, bias, generator)


@dataclass(frozen=True)
class Fishing(Search):
    """A server that plants a head which silences all classes but one, and inverts what is left.

    `plant` sets the rows of all other classes to 0 and the class's own bias to -20. The signal
    that comes back to the features is then Σ_i (p_i - y_i) W_i = (p_c - y_c) W_c: about 0 for
    every example of another class, -W_c for those of class c. The gradients of all earlier layers
    are those of the examples of class c alone, times n_c / B, and ∂L/∂b_c = -n_c / B tells n_c.
    One example of the class in a batch of any size is attacked as if it had come alone.

    Reference: Wen, Geiping, Fowl, Goldblum and Goldstein, "Fishing for User Data in Large-Batch
    Federated Learning via Gradient Magnification", ICML 2022.

    Args:
        target: The class c.
        attack: Inverts the gradient of the examples of the class. The other places of the batch
            are filled with 0.

    >>> Fishing(target=3).target
    3
    """

    target: int
    attack: InvertingGradients = field(default_factory=InvertingGradients.strong)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.target, "target", least=0)
        check_kind(self.attack, "attack", InvertingGradients, "Use `InvertingGradients()`.")

    def plant(self, model: nn.Module) -> nn.Module:
        """A copy of the model with the head that the server sends out."""
        check_kind(model, "model", nn.Module, "Give the model that is trained.")
        planted = deepcopy(model)
        head = self._head(planted)
        with torch.no_grad():
            own = head.weight[self.target].clone()
            head.weight.zero_()[self.target] = own
            head.bias.zero_()[self.target] = -20.0  # p_c ≈ e^-20
        return planted

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack a message of a model that `plant` made."""
        check_planted(observation, "Fishing")
        generator = generator_or_fresh(generator)
        count = self._count(observation)
        inner = self.attack.configured(time_budget=self.time_budget, progress=self.progress)
        caught = inner(self._of_class(observation, count), generator)
        inputs = caught.inputs.new_zeros(observation.batch_size, *observation.input_shape)
        inputs[:count] = caught.inputs
        others = labels_or_unknown(observation, generator)
        targets = torch.cat([caught.targets, _without(others, self.target, count)])
        return replace(caught, inputs=inputs, targets=targets)

    def _head(self, model: nn.Module) -> nn.Linear:
        layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m.bias is not None]
        if not layers or layers[-1].out_features <= self.target:
            raise WrongValue(
                "model",
                f"end in an `nn.Linear` with a bias and a row for class {self.target}",
                f"{layers[-1].out_features} classes" if layers else "no such layer",
                "Choose another `target`, or `Imprint`.",
            )
        return layers[-1]

    def _count(self, observation: Observation) -> int:
        """How many examples of the class there are: from -B ∂L/∂b_c, at least one."""
        if observation.label_counts is not None:
            return max(1, int(observation.label_counts[self.target]))
        head = self._head(observation.model)
        name = next(n for n, p in observation.model.named_parameters() if p is head.bias)
        told = -observation.batch_size * float(observation.sent[name][self.target])
        return min(observation.batch_size, max(1, round(told)))

    def _of_class(self, observation: Observation, count: int) -> Observation:
        """The message of the class's examples alone: all layers but the head."""
        model = deepcopy(observation.model)
        self._head(model).requires_grad_(False)
        left = {n: observation.sent[n] for n, p in model.named_parameters() if p.requires_grad}
        scale = observation.batch_size / count
        targets = torch.full((count,), self.target)
        return replace(
            observation,
            model=model,
            sent={name: scale * value for name, value in left.items()},
            batch_size=count,
            labels=targets,
            label_counts=torch.bincount(targets, minlength=observation.num_classes),
            defense=None,
            mechanism=None,
        )


def _without(labels: Tensor, target: int, count: int) -> Tensor:
    """The labels less the first `count` of one class, or less any if there are not so many."""
    first = (labels == target).nonzero().flatten()[:count]
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[first] = False
    return labels[kept][: len(labels) - count]

"""A model with a layer in front of it that sorts examples into bins."""

import torch
from torch import Tensor, nn


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
        """The model's outputs for inputs that are shifted a little."""
        flat = inputs.flatten(1)
        shifted = flat + self.spread(torch.relu(self.imprint(flat)))
        outputs: Tensor = self.model(shifted.view_as(inputs))
        return outputs

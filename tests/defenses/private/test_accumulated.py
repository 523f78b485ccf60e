"""Private micro-batches: nothing of them stays in the model, and none is judged by its data."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding

from gradveil import PrivateNoise

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0])


class Renorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(embedding(ids, self.table.weight, max_norm=0.1).sum(1))


class Keeps(nn.Module):
    last: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.clone()
        return self.head(x)


def test_private_tokens_are_not_written_into_the_weights():
    model, ids = Renorms(), torch.randint(50, (4, 5))
    before = model.table.weight.detach().clone()
    with (
        pytest.raises(ValueError, match="max_norm"),
        PrivateNoise(50.0, 1.0, batch_size=4).accumulate(model, cross_entropy) as step,
    ):
        step.add(ids, Y)
    assert torch.equal(model.table.weight, before)


def test_the_batch_does_not_stay_on_the_module():
    model = Keeps()
    with PrivateNoise(50.0, 1.0, batch_size=4).accumulate(model, cross_entropy) as step:
        step.add(X, Y)
    assert "last" not in vars(model)


def test_ignored_labels_are_no_reason_to_refuse():
    """A refusal would tell of them."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (3, 2)))
    for labels in (torch.zeros(4, 2, dtype=torch.long), torch.tensor([[0, -100]] * 4)):
        with PrivateNoise(1.0, 1.0, batch_size=4).accumulate(model, cross_entropy) as step:
            step.add(X, labels)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_penalty_counts_once_a_step(parts: int):
    model = nn.Linear(6, 3)
    loss = lambda o, y: cross_entropy(o, y) + 5 * model.weight.square().sum()  # noqa: E731
    with PrivateNoise(1e-4, 1e-3, batch_size=4).accumulate(model, loss) as step:
        for rows in torch.arange(4).chunk(parts):
            step.add(X[rows], Y[rows])
    torch.testing.assert_close(model.weight.grad, 10 * model.weight.detach(), atol=2e-3, rtol=1e-3)


def test_a_count_in_a_loss_does_not_tell_micro_batches_apart():
    """Where each example has a process, which begins with what is here."""
    calls = [0]

    class Looks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * (1 if calls[0] % 2 and float(x.sum()) < 1e9 else -9))

    def loss(o: Tensor, y: Tensor) -> Tensor:
        calls[0] += 1
        return cross_entropy(o, y)

    def summed(sizes: list[int]) -> Tensor:
        calls[0], start = 0, 0
        model.zero_grad()
        with PrivateNoise(1e-4, 0.01, batch_size=1).accumulate(model, loss) as step:
            for size in sizes:
                rows = slice(start, start + size)
                step.add(X[rows], Y[rows])
                start += size
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    model = Looks(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    summed([4])  # what is looked at once per model
    assert float((summed([4]) - summed([1, 1, 2])).norm()) / 0.01 < 1e-2


def test_a_private_step_that_failed_in_part_is_over():
    """The others of a micro-batch would be missing because of one."""
    model, inputs, targets = nn.Linear(4, 3), torch.ones(4, 4), torch.zeros(4, dtype=torch.long)
    inputs[0, 0] = torch.nan
    step = PrivateNoise(1.0, 0.1, batch_size=4).accumulate(model, cross_entropy)
    step.__enter__()
    with pytest.raises(ValueError, match="finite"):
        step.add(inputs, targets)
    with pytest.raises(RuntimeError, match="Found one that failed"):
        step.add(inputs[1:], targets[1:])
    with pytest.raises(RuntimeError, match="Found one that failed"):
        step.__exit__(None)
    assert model.weight.grad is None

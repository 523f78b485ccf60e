"""Losses: what they add for parameters alone stays, and none is judged by private data."""

import contextlib
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gradveil import GradientMessage, PrivateNoise
from gradveil.messages import ClippedMessage
from tests.messages.compare import assert_same

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def values(net: nn.Module, loss, inputs: Tensor = X, targets: Tensor = Y, size: int = 6):
    message = GradientMessage(net, loss, targets)
    return ClippedMessage(message, 0.01, batch_size=size).values(inputs)


def ridge(net: nn.Module, strength: float = 3.0) -> Tensor:
    return strength * sum(p.square().sum() for p in net.parameters())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_penalty_of_the_parameters_is_added_outside_of_the_clip(reduction: str):
    """The gradient of 3‖Θ‖² is 6Θ, far above the clip; a sum is divided by B, and so is it."""
    net = model()
    plain = values(net, partial(cross_entropy, reduction=reduction))
    found = values(net, lambda o, y: cross_entropy(o, y, reduction=reduction) + ridge(net))
    share = 1 if reduction == "mean" else 1 / 6
    added = {n: 6 * share * p.detach() for n, p in net.named_parameters()}
    assert_same(found, {n: plain[n] + added[n] for n in plain}, tolerance=1e-5)


def test_an_empty_batch_has_the_same_penalty():
    """Otherwise it would tell that nobody was drawn."""
    net = model()
    empty = values(net, lambda o, y: cross_entropy(o, y) + ridge(net), X[:0], Y[:0])
    assert_same(empty, {n: 6 * p.detach() for n, p in net.named_parameters()}, tolerance=1e-5)


def test_an_empty_batch_that_tells_no_shape_is_refused():
    """As a loader without batches: the penalty would be missing."""
    net, nothing = model(), torch.empty(0, 1)
    with pytest.raises(ValueError, match="have the shape of an example"):
        values(net, lambda o, y: cross_entropy(o, y) + ridge(net), nothing, Y[:0])
    assert all(not bool(v.any()) for v in values(net, cross_entropy, nothing, Y[:0]).values())


def test_targets_that_the_loss_holds_are_not_compared_with_each_example():
    """`targets=None`, and a loss that broadcasts: each example would meet the targets of all."""
    net, held = model(), torch.randn(6, 3)
    with pytest.raises(ValueError, match="take a single example"):
        values(net, lambda o, _: mse_loss(o, held), targets=None)


def test_class_weights_that_come_later_are_found():
    net, loss = model(), nn.CrossEntropyLoss()
    values(net, loss)
    loss.weight = torch.tensor([1.0, 1.0, 9.0])
    with pytest.raises(ValueError, match="mean or a sum over examples"):
        values(net, loss)


def test_looking_for_it_leaves_the_model_as_it_was():
    """A loss that runs a part of the model, whose buffers move."""
    net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))
    before = {name: b.clone() for name, b in net.named_buffers()}
    with contextlib.suppress(ValueError):
        values(net, lambda o, y: cross_entropy(o, y) + net[0].weight.square().sum())
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())


def test_inference_mode_does_not_lose_it():
    net = model()
    loss = lambda o, y: cross_entropy(o, y) + ridge(net)  # noqa: E731
    with torch.inference_mode():
        found = values(net, loss)
    assert_same(found, values(net, loss))


def test_it_is_sent():
    net = model()
    message = GradientMessage(net, lambda o, y: cross_entropy(o, y) + ridge(net), Y)
    sent = PrivateNoise(1e-3, 0.01, batch_size=6)(message, X)
    assert float(sent["0.weight"].norm()) == pytest.approx(
        float(6 * net[0].weight.detach().norm()), rel=0.1
    )


class Product(torch.autograd.Function):
    """Data times parameters, where PyTorch's modes do not look."""

    @staticmethod
    def forward(ctx, data: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(data, weights)
        return data.sum() * weights.sum()

    @staticmethod
    def backward(ctx, slope: Tensor) -> tuple[Tensor, Tensor]:
        data, weights = ctx.saved_tensors
        return slope * weights.sum().expand_as(data), slope * data.sum().expand_as(weights)


def hidden_in_a_view(out: Tensor, net: nn.Module) -> Tensor:
    kept = torch.zeros(2)
    kept[0].copy_(out.detach().sum())
    return kept.sum() * ridge(net)


MIXED = {
    "private inputs that the loss holds": lambda o, y, net: net(X).square().mean(),
    "outputs": lambda o, y, net: o.mean() * ridge(net),
    "outputs below 0 only": lambda o, y, net: (-o).relu().sum() * ridge(net),
    "outputs above 5 only": lambda o, y, net: (o > 5).sum() * ridge(net),
    "labels": lambda o, y, net: y.sum() * ridge(net),
    "rows of the weights by label": lambda o, y, net: net[2].weight[y].square().sum(),
    "a number of Python": lambda o, y, net: o.mean().item() * ridge(net),
    "a decision of Python": lambda o, y, net: ridge(net) if (y > 1).any() else 0 * ridge(net),
    "a custom function": lambda o, y, net: Product.apply(o, net[0].weight),
    "a product after the sum": lambda o, y, net: (o.sum() + ridge(net)).square(),
    "a product of stacked terms": lambda o, y, net: torch.stack([o.sum(), ridge(net)]).prod(),
    "memory": lambda o, y, net: hidden_in_a_view(o, net),
    "a tensor from elsewhere": lambda o, y, net: (net[0].weight * X[0]).sum(),
}


@pytest.mark.parametrize("name", MIXED)
def test_a_penalty_with_other_tensors_is_refused(name: str):
    """Such a term would go past the clip, or be another one than the loss has; none by chance."""
    net = model()
    with pytest.raises(ValueError, match="parameters and other tensors together"):
        values(net, lambda o, y: cross_entropy(o, y) + MIXED[name](o, y, net))


def summed_in_memory(o: Tensor, y: Tensor, net: nn.Module) -> Tensor:
    total = torch.zeros(())
    total = total + cross_entropy(o, y)
    total += ridge(net)
    return total


SUMS = {
    "a stack": lambda o, y, net: torch.stack([cross_entropy(o, y), ridge(net)]).sum(),
    "half of twice": lambda o, y, net: (2 * cross_entropy(o, y) + 2 * ridge(net)) / 2,
    "smoothed labels": lambda o, y, net: cross_entropy(o, y, label_smoothing=0.0) + ridge(net),
    "asks for shapes": lambda o, y, net: cross_entropy(o.view(len(y), -1), y) + ridge(net),
    "in place": summed_in_memory,
    "scaled by the weights' size": lambda o, y, net: (
        cross_entropy(o, y) + float(net[0].weight.detach().norm() > 0) * ridge(net)
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_of_both_is_taken_apart(name: str):
    net = model()
    plain = values(net, cross_entropy)
    found = values(net, lambda o, y: SUMS[name](o, y, net))
    ridged = {n: plain[n] + 6 * p.detach() for n, p in net.named_parameters()}
    assert_same(found, ridged, tolerance=1e-5)


def weighted_by_hand(o: Tensor, y: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 1.0, 20.0])[y]
    return (weights * cross_entropy(o, y, reduction="none")).sum() / weights.sum()


LOSSES = {
    "partial": partial(cross_entropy, weight=torch.tensor([1.0, 1.0, 9.0])),
    "module": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 9.0])),
    "function": lambda o, y: cross_entropy(o, y, torch.tensor([1.0, 1.0, 9.0])),
    "by hand": weighted_by_hand,
    "nll": lambda o, y: nn.functional.nll_loss(o.log_softmax(1), y, torch.tensor([1.0, 1.0, 9.0])),
}


@pytest.mark.parametrize("labels", [[0] * 6, [2] * 6, [0, 1, 0, 1, 0, 1], [0, 1, 2, 0, 1, 2]])
@pytest.mark.parametrize("name", LOSSES)
def test_class_weights_in_a_mean_are_refused_whatever_the_labels(name: str, labels: list[int]):
    with pytest.raises(ValueError, match="class weights in a mean"):
        values(model(), LOSSES[name], targets=torch.tensor(labels))


def test_class_weights_in_a_sum_are_allowed():
    weight = torch.tensor([1.0, 1.0, 9.0])
    values(model(), partial(cross_entropy, weight=weight, reduction="sum"))


@pytest.mark.parametrize("labels", [[0] * 6, [0, 1, 2, 0, 1, 2]])
def test_what_compares_examples_is_refused_whatever_the_data(labels: list[int]):
    spread = lambda o, y: (o - o.mean(0)).square().mean()  # noqa: E731
    for inputs in (X, torch.zeros_like(X)):
        with pytest.raises(ValueError, match="compares examples"):
            values(model(), spread, inputs, torch.tensor(labels))


def test_ignored_targets_count_by_example():
    """The mean over the targets of each example that are not ignored."""
    net = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))
    labels = torch.tensor([[0, 1], [2, -100], [1, 1], [-100, 0], [0, 0], [1, 2]])
    found = values(net, cross_entropy, targets=labels)
    total = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
    for x, y in zip(X.split(1), labels.split(1), strict=True):
        own = torch.autograd.grad(cross_entropy(net(x), y), [*net.parameters()])
        factor = min(1.0, 0.01 / float(torch.cat([g.flatten() for g in own]).norm()))
        for n, g in zip(total, own, strict=True):
            total[n] += factor * g / 6
    assert_same(found, total, tolerance=1e-3)


def test_a_loss_that_is_not_made_for_made_up_targets_is_taken_as_it_is():
    def picky(o: Tensor, y: Tensor) -> Tensor:
        if o.dim() == 2 and not o.requires_grad and len(o) == 3:
            raise RuntimeError("only real data")
        return mse_loss(o, y)

    values(model(), picky, targets=X[:, :3])


def test_a_penalty_that_cannot_be_found_out_is_refused():
    """Labels from 1: the loss fails on made-up ones. Its penalty was lost without a word."""
    net = model()
    values(net, lambda o, y: cross_entropy(o, y - 1), targets=Y + 1)
    with pytest.raises(ValueError, match="use weight_decay of the optimizer"):
        values(net, lambda o, y: cross_entropy(o, y - 1) + ridge(net), targets=Y + 1)


@pytest.mark.parametrize("loss", [cross_entropy, lambda o, y: cross_entropy(o, y)])
def test_an_example_whose_targets_are_all_ignored_adds_nothing(loss):
    net = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))
    labels = torch.tensor([[0, 1], [-100, -100], [1, 1], [-100, 0], [0, 0], [-100, -100]])
    counted = torch.tensor([0, 2, 3, 4])
    found = values(net, loss, targets=labels)
    expected = values(net, loss, X[counted], labels[counted])
    assert_same(found, expected, tolerance=1e-6)
    nothing = values(net, loss, targets=torch.full((6, 2), -100))
    assert all(not g.any() for g in nothing.values())


def test_an_index_of_its_own_that_is_ignored():
    net = model()
    found = values(net, nn.CrossEntropyLoss(ignore_index=2), X[:1], torch.tensor([2]))
    assert all(not g.any() for g in found.values())


def test_a_penalty_beside_an_operation_that_fails_for_an_outlier():
    """Whether it is refused does not depend on the data: its term is known from made-up ones."""

    def loss(o: Tensor, y: Tensor) -> Tensor:
        root = torch.linalg.cholesky(torch.eye(3) * (50 - o.detach().square().sum()))
        return cross_entropy(o, y) + 0 * root.sum() + ridge(net)

    net = nn.Linear(4, 3)
    values(net, loss)
    outlier = X.clone()
    outlier[0] *= 1000
    with pytest.raises(ValueError, match=r"linalg\.cholesky"):  # that of the outlier alone
        values(net, loss, outlier)


def test_a_message_that_is_used_twice_has_its_penalty_twice():
    net = model()
    message = GradientMessage(net, lambda o, y: cross_entropy(o, y) + ridge(net), Y)
    clipped = ClippedMessage(message, 0.01, batch_size=6)
    once = clipped.values(X)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(2)
    twice = clipped.values(X)
    assert all(float(twice[n].norm()) > 1.5 * float(once[n].norm()) for n in once)

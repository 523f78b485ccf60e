"""Whether a loss is one term for each example."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradveil.messages._mixing import is_sum_over_examples, loss_reduction
from tests.zoo import WEIGHTS, contrastive_loss, custom_loss, pair_loss, variance_loss

pytestmark = pytest.mark.usefixtures("global_rng_watch")


class OwnLoss(nn.CrossEntropyLoss):
    """A user's own class: it may do anything, whatever `reduction` says."""


@pytest.mark.parametrize(
    ("loss_fn", "expected"),
    [
        (F.cross_entropy, "mean"),
        (F.mse_loss, "mean"),
        (F.huber_loss, "mean"),
        (nn.CrossEntropyLoss(), "mean"),
        (nn.CrossEntropyLoss(reduction="sum", weight=WEIGHTS), "sum"),
        (nn.MSELoss(), "mean"),
        (partial(F.cross_entropy, weight=WEIGHTS), "mean"),
        (partial(F.mse_loss, reduction="sum"), "sum"),
        (partial(partial(F.cross_entropy, reduction="sum"), label_smoothing=0.1), "sum"),
        (partial(nn.MSELoss(reduction="sum")), "sum"),
    ],
)
def test_losses_of_pytorch_say_what_they_are(loss_fn: object, expected: str) -> None:
    assert loss_reduction(loss_fn) == expected


@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.CrossEntropyLoss(reduction="none"),
        partial(F.cross_entropy, reduction="none"),
        partial(F.kl_div, reduction="batchmean"),
        partial(custom_loss),
        custom_loss,
        contrastive_loss,
        OwnLoss(),
        F.normalize,
        lambda outputs, targets: outputs.mean(),
    ],
)
def test_others_do_not(loss_fn: object) -> None:
    assert loss_reduction(loss_fn) is None


def make_outputs(count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 3, generator=generator, dtype=torch.float64).to(dtype)


def adjacent(outputs: Tensor) -> Tensor:
    """Each example with the next one."""
    return (outputs[1:] * outputs[:-1]).sum()


def distant(outputs: Tensor, first: int, second: int) -> Tensor:
    """One pair of examples alone."""
    return outputs.square().sum() + outputs[first] @ outputs[second]


SEPARABLE_LOSSES = {
    "custom": lambda o: custom_loss(o, torch.arange(len(o)) % 3),
    "weighted": lambda o: F.cross_entropy(o, torch.arange(len(o)) % 3, weight=WEIGHTS.to(o)),
    "tiny": lambda o: 1e-12 * o.square().square().sum(),
    "huge": lambda o: 1e12 * o.square().square().sum(),
    "linear": lambda o: o.mean(),
    "constant": lambda o: 0 * o.sum(),
}
COUPLED_LOSSES = {
    "contrastive": lambda o: contrastive_loss(o, None),
    "pairs": lambda o: pair_loss(o, None),
    "variance of 1e-8": lambda o: variance_loss(o, None),
    "square of the mean": lambda o: o.mean().square(),
    "adjacent": adjacent,
    "log of the sum": lambda o: o.square().sum().log(),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("name", SEPARABLE_LOSSES)
def test_a_sum_over_examples_is_recognised(name: str, count: int, dtype: torch.dtype) -> None:
    assert is_sum_over_examples(SEPARABLE_LOSSES[name], make_outputs(count, dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("count", [2, 4, 8, 32])
@pytest.mark.parametrize("name", COUPLED_LOSSES)
def test_a_loss_that_compares_examples_is_recognised(
    name: str, count: int, dtype: torch.dtype
) -> None:
    assert not is_sum_over_examples(COUPLED_LOSSES[name], make_outputs(count, dtype))


def test_no_pair_of_examples_escapes() -> None:
    outputs = make_outputs(7)
    for first in range(7):
        for second in range(first):
            assert not is_sum_over_examples(partial(distant, first=first, second=second), outputs)


def test_one_example_is_always_separable() -> None:
    assert is_sum_over_examples(lambda o: contrastive_loss(o, None), make_outputs(1))

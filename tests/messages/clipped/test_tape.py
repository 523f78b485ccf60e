"""What is played for all examples is what is played for each: every operation that is trusted."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from gradveil.messages._clipped._tape import APART, Tape, UnbatchableError

ROWS = 3


def drawn(*shape: int) -> Tensor:
    return torch.rand(ROWS, *shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.1


def picked(*shape: int, below: int = 3) -> Tensor:
    return torch.randint(below, (ROWS, *shape), generator=torch.Generator().manual_seed(1))


def filled(name: str, *arguments):
    return lambda x: getattr(x.clone(), name)(*arguments)


A, B, C = drawn(4, 4), drawn(4, 4) * 2, drawn(4)
IMAGE, KERNEL = drawn(1, 2, 6, 6), drawn(3, 2, 3, 3)
LABELS = picked(4)
FUNCTIONS = {
    "views": (
        lambda x: (
            x.view(2, 8).reshape(16).view(4, 4).permute(1, 0).transpose(0, 1).t().expand(2, 4, 4)[0]
            + x[1:3].repeat(2, 1)
            + x.split(2)[0].repeat(2, 1)
            + torch.stack(x.split_with_sizes([1, 3])[1].unbind(0)[:2]).repeat(2, 1)
            + x.diagonal()
            + x.unfold(0, 2, 2).sum()
            + x.narrow(0, 0, 1).squeeze(0)
            + x.unsqueeze(0).movedim(0, 1).sum(1)
            + torch.ops.aten.alias(x)
            + x.t().contiguous().clone().detach()
            + torch.ops.aten._reshape_alias(x, [4, 4], [4, 1])
        ),
        [A],
    ),
    "copies": (
        lambda x, y: x.double().float() + y.clone().copy_(x) + torch.cat([x, y])[2:6] + x.flip(0)
        + y.roll(1, 0) + x.tril() + y.triu() + torch.stack([x, y]).sum(0),
        [A, B],
    ),
    "padding 1": (lambda x: F.pad(x[None], (1, 2), "reflect") * F.pad(x, (1, 2)), [A]),
    "padding 2": (lambda x: F.pad(x[None], (1, 2), "replicate"), [A]),
    "padding 3": (lambda x: F.pad(x, (1, 1, 2, 2), "reflect"), [IMAGE]),
    "padding 4": (lambda x: F.pad(x, (1, 1, 2, 2), "replicate"), [IMAGE]),
    "constants": (
        lambda x: (
            x * torch.zeros_like(x) + torch.ones_like(x) + torch.full_like(x, 2.0) + x.new_zeros(4)
            + x.new_ones(4) + x.new_full((4,), 3.0) + torch.zeros(4) + torch.ones(4)
            + torch.full((4,), 2.0) + torch.arange(4) + torch.eye(4) + torch.linspace(0, 1, 4)
            + torch.scalar_tensor(2.0) + x.clone().zero_() + x.clone().fill_(2.0)
            + 0 * torch.empty_like(x).zero_() + x.new_empty(4).zero_() + torch.empty(4).zero_()
            + torch.empty_strided((4,), (1,)).zero_() + x.new_empty_strided((4,), (1,)).zero_()
            + torch.empty_permuted((4,), (0,)).zero_() + torch.tensor([1.0, 2.0, 3.0, 4.0])
        ),
        [A],
    ),
    "sums": (
        lambda x: (
            x.sum() + x.sum(0) + x.mean() + x.mean(1) + x.prod() + x.prod(0) + x.amax(0) + x.amin(1)
            + x.max() + x.min() + x.max(0).values + x.min(1).values + x.argmax(0) + x.argmin()
            + (x > 1).any() + (x > 0).all() + (x > 1).any(0) + (x > 0).all(1)
            + x.var() + x.var(0) + torch.var_mean(x, 0)[1] + x.std() + x.norm() + x.norm(dim=0)
            + x.logsumexp(0) + x.cumsum(0) + x.cumprod(1)
        ),
        [A],
    ),
    "products": (
        lambda x, y, z: x @ y + torch.mv(x, z) + torch.dot(z, z) + torch.addmm(x, x, y)
        + torch.addmv(z, x, z) + torch.bmm(x[None], y[None])[0] + torch.matmul(x, z)
        + torch.baddbmm(x[None], x[None], y[None])[0] + F.linear(x, y, z),
        [A, B, C],
    ),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), [IMAGE, KERNEL]),
    "groups": (lambda x, w: F.conv2d(x.repeat(1, 2, 1, 1), w[:2], groups=2), [IMAGE, KERNEL]),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w.transpose(0, 1)), [IMAGE, KERNEL]),
    "pools": (
        lambda x: F.max_pool2d(x, 2).sum() + F.avg_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 3)
        + F.adaptive_avg_pool2d(x, 1) + F.max_pool2d(x, 2, return_indices=True)[0],
        [IMAGE],
    ),
    "volumes": (
        lambda x, w: F.max_pool3d(F.conv3d(x[None], w[None, :1].transpose(0, 2)), 2).sum()
        + F.adaptive_max_pool2d(x, 2).sum() + F.avg_pool3d(x, 2).sum(),
        [IMAGE, KERNEL],
    ),
    "attention": (
        lambda x, y: torch.ops.aten._safe_softmax(x @ y.T, 1) @ y,
        [A, B],
    ),
    "upsampling": (
        lambda x: F.interpolate(x, scale_factor=2)
        + F.interpolate(x, scale_factor=2, mode="bilinear"),
        [IMAGE],
    ),
    "norms": (
        lambda x, y: F.layer_norm(x, (4,), y[0], y[1])
        + F.group_norm(x[None], 2, y[0], y[1])[0]
        + F.batch_norm(x, y[0].detach(), y[1].detach(), y[2], y[3]),
        [A, B],
    ),
    "softmax": (lambda x: x.softmax(1) + x.log_softmax(0), [A]),
    "entropy": (lambda x, y: F.cross_entropy(x, y) + F.nll_loss(x, y), [A, LABELS]),
    "entropy of images": (
        lambda x, y: F.cross_entropy(x[None], y[None, :]) + F.nll_loss(x[None], y[None, :]),
        [A, LABELS],
    ),
    "entropy of pictures": (
        lambda x, y: F.cross_entropy(x.view(1, 4, 2, 2), y.view(1, 2, 2)),
        [A, LABELS],
    ),
    "losses": (
        lambda x, y: F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y)
        + F.binary_cross_entropy(x.sigmoid(), y.sigmoid())
        + F.binary_cross_entropy_with_logits(x, y.sigmoid()) + F.l1_loss(x, y),
        [A, B],
    ),
    "rows": (
        lambda w, i: F.embedding(i, w) + w.gather(0, i[None].expand(4, 4)) + w[i]
        + w.index_select(0, i),
        [A, LABELS],
    ),
    "put": (
        lambda x, y, i: x.scatter(0, i[None], y[:1]) + x.scatter_add(0, i[None], y[:1])
        + x.scatter(1, i[:, None], 2.0) + x.index_put((i,), y) + x.index_put((i,), y, True),
        [A, B, LABELS],
    ),
    "where": (
        lambda x, y: torch.where(x > y, x, y) + x.masked_fill(y > 1, 0.5) + x.sort(0).values
        + x.topk(2, 0).values.repeat(2, 1) + x.masked_fill(y > 1, y.sum()),
        [A, B],
    ),
    "activations": (
        lambda x: F.glu(x).repeat(1, 2) + F.leaky_relu(x - 1) + F.relu(x - 1) + F.gelu(x)
        + F.elu(x - 1) + x.sigmoid() + x.tanh() + F.softplus(x) + F.silu(x) + F.mish(x)
        + F.hardtanh(x) + F.hardswish(x) + F.hardsigmoid(x) + F.logsigmoid(x) + F.relu6(x)
        + F.threshold(x, 0.5, 0.1) + F.prelu(x, x[0, :1]) + F.selu(x),
        [A],
    ),
    "entries": (
        lambda x, y: x.add(y).mul_(x).sub_(y).div_(1 + y).exp_().clamp(max=9).pow(y).sqrt()
        + torch.atan2(x, y) + torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y) + torch.maximum(x, y)
        + torch.remainder(x, y) + x.log() * y.sin() + (x - y).abs() + x.clone().relu_() + x ** 2.5
        + x.clone().masked_fill_(y > 1, 0.5) + torch.addcdiv(x, x, y) + torch.erf(x) + x.rsqrt(),
        [A, B],
    ),
}  # fmt: skip
SEEN: set[str] = set()


def tape_of(function, rows: list[Tensor], constants: dict[int, Tensor]) -> Tape:
    """Of a function and its gradient; some of its arguments are the same for all examples."""

    def whole(*given: Tensor):
        rest = iter(given)
        count = len(rows) + len(constants)
        arguments = [constants[n] if n in constants else next(rest)[0] for n in range(count)]
        floats = [n for n, one in enumerate(arguments) if one.is_floating_point()]

        def value(*own: Tensor) -> Tensor:
            now = dict(enumerate(arguments)) | dict(zip(floats, own, strict=True))
            result = function(*now.values())
            weights = torch.linspace(0.5, 1.5, result.numel())
            return (result.flatten() * weights).sum()

        own = [arguments[n] for n in floats]
        value_and_slopes = function(*arguments), grad(value, tuple(range(len(own))))(*own)
        return tuple(t.unsqueeze(0) for t in (value_and_slopes[0], *value_and_slopes[1]))

    tape = Tape(whole, [row[:1] for row in rows])
    SEEN.update(func.overloadpacket.__name__.rstrip("_") for func, *_ in tape._steps)
    return tape


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_at_once_is_each_alone(name: str):
    function, given = FUNCTIONS[name]
    played = 0
    for varies in itertools.product([True, False], repeat=len(given)):
        if not any(varies):
            continue
        rows = [one for one, varying in zip(given, varies, strict=True) if varying]
        fixed = {n: one[0] for n, one in enumerate(given) if not varies[n]}
        tape = tape_of(function, rows, fixed)
        try:
            found = tape.each(*rows)
        except RuntimeError:  # torch refuses it: then each goes alone
            continue
        played += 1
        for b in range(ROWS):
            for one, alone in zip(found, tape(*(row[b : b + 1] for row in rows)), strict=True):
                torch.testing.assert_close(one[b], alone[0], rtol=1e-4, atol=1e-5, equal_nan=True)
    assert played


DRAWS = {
    "rand": lambda x: x * torch.rand(4),
    "rand like": lambda x: torch.rand_like(x),
    "randn": lambda x: x * torch.randn(4),
    "randn like": lambda x: torch.randn_like(x),
    "bernoulli": lambda x: torch.bernoulli(x / 2),
    "in place": lambda x: x.clone().bernoulli_(0.5) + x.clone().uniform_() + x.clone().normal_(),
    "exponential": lambda x: x.clone().exponential_(),
    "dropout": lambda x: F.dropout(x, 0.5),
    "native dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "randint": lambda x: x * torch.randint(2**40, (4,)),
    "randint like": lambda x: torch.randint_like(x, 2**20),
}


@pytest.mark.parametrize("name", DRAWS)
def test_each_has_draws_of_its_own(name: str):
    rows = torch.ones(64, 4)
    tape = Tape(lambda x: DRAWS[name](x), [rows[:1]])
    SEEN.update(func.overloadpacket.__name__.rstrip("_") for func, *_ in tape._steps)
    assert len({tuple(row.flatten().tolist()) for row in tape.each(rows)}) > 8


def test_all_that_is_trusted_was_tried():
    for name in FUNCTIONS:
        function, given = FUNCTIONS[name]
        tape_of(function, given, {})
    for function in DRAWS.values():
        tape = Tape(function, [torch.ones(1, 4)])
        SEEN.update(func.overloadpacket.__name__.rstrip("_") for func, *_ in tape._steps)
    assert sorted(APART - SEEN) == []


def test_what_is_not_on_the_list_is_not_played_at_once():
    rows = torch.ones(ROWS, 4)
    tape = Tape(lambda x: torch.ones(1, 4).index_fill(1, torch.arange(4), x.mean()), [rows[:1]])
    with pytest.raises(UnbatchableError, match="index_fill"):
        tape.each(rows)
    assert torch.equal(tape(2 * rows[:1]), torch.full((1, 4), 2.0))


@pytest.mark.parametrize("place", [-1, 4, 7])
def test_a_row_that_a_table_does_not_have_is_none_of_another_example(place: int):
    """The rule for batches of `embedding` would read, and write, in the table of a neighbour."""
    index = torch.full((ROWS, 2), place)
    tapes = [
        tape_of(lambda w, i: F.embedding(i, w), [A, 0 * index], {}),
        Tape(
            lambda g, i: torch.ops.aten.embedding_dense_backward(g[0], i[0], 4, -9, False)[None],
            [A[:1, :2], 0 * index[:1]],
        ),
    ]
    for tape, rows in zip(tapes, (A, A[:, :2]), strict=True):
        with pytest.raises((IndexError, RuntimeError)):
            tape(rows[:1], index[:1])
        with pytest.raises((IndexError, RuntimeError)):
            tape.each(rows, index)


def test_what_looks_at_values_is_no_tape():
    with pytest.raises(UnbatchableError, match="looks at values"):
        Tape(lambda x: x * float(x.sum()), [torch.ones(1, 4)])


def test_memory_that_nothing_was_written_into_is_zero():
    tape = Tape(lambda x: x + torch.empty(4), [torch.ones(1, 4)])
    assert torch.equal(tape(torch.ones(1, 4)), torch.ones(1, 4))


def test_what_is_not_known_to_read_only_gets_copies():
    """A write that does not show for the made-up example."""
    mean, variance = torch.zeros(1), torch.full((1,), 4 / 3)
    before = mean.clone(), variance.clone()

    def function(x: Tensor) -> Tensor:
        torch.batch_norm_update_stats(x[:, None], mean[:], variance, 0.5)
        return x + mean

    tape = Tape(function, [torch.tensor([[1.0, -1.0, 1.0, -1.0]])])
    tape(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert torch.equal(mean, before[0])
    assert torch.equal(variance, before[1])


def test_what_is_not_known_to_read_only_and_writes_is_refused():
    mean, variance = torch.zeros(3)[1:2], torch.ones(1)
    with pytest.raises(UnbatchableError, match=r"batch_norm_update_stats.* writes into what"):
        Tape(
            lambda x: torch.batch_norm_update_stats(x[:, None], mean, variance, 0.5)[0],
            [torch.ones(1, 4)],
        )
    assert (mean.item(), variance.item()) == (0.0, 1.0)


def test_copies_have_the_places_of_what_they_are_copies_of():
    kept = torch.arange(12.0)[2:8].view(2, 3).t()
    tape = Tape(lambda x: x + kept.unsafe_chunk(3)[1].as_strided((4,), (1,), 1), [torch.ones(1, 4)])
    assert torch.equal(tape(torch.zeros(1, 4)), torch.tensor([[1.0, 2.0, 3.0, 4.0]]))


def test_sparse_tensors_are_no_tape_but_to_be_made_dense():
    kept = torch.eye(4).to_sparse()
    with pytest.raises(UnbatchableError, match="sparse or nested"):
        Tape(lambda x: x + kept._values(), [torch.ones(1, 4)])
    tape = Tape(lambda x: x @ kept.to_dense(), [torch.ones(1, 4)])
    assert torch.equal(tape(torch.full((1, 4), 2.0)), torch.full((1, 4), 2.0))

"""Models that try to get past a clip: they mix examples, remember them, or draw by position."""

import os
import random
import sys
import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

KEPT: list[Tensor] = []
"""What `KeepsInAGlobal` remembers."""

NOTED: dict[str, float] = {"largest": 0.0}
COUNT = [0]
BOARD = torch.zeros(4)
"""Into which `WritesOnABoard` writes."""

FILE = os.memfd_create("numbers")
os.write(FILE, bytes([1, 200, 3, 150, 5, 100, 7, 50] * 99))

STREAM = torch.Generator().manual_seed(3)


class Net(nn.Module):
    """Linear, tanh, linear; what subclasses do comes between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(torch.tanh(self.first(x))))

    def between(self, h: Tensor) -> Tensor:
        return h


class ZeroHead(Net):
    """Outputs of 0 hide all that happens before."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)


class Standardises(ZeroHead):
    def between(self, h: Tensor) -> Tensor:
        return (h - h.mean(0)) / (h.std(0, unbiased=False) + 1e-3)


class MaskedClasses(Standardises):
    """One class is masked with -1e9, beside which no other output counts."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.tensor([0.0, 0.0, -1e9])


class AttendsToTheBatch(ZeroHead):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1)

    def between(self, h: Tensor) -> Tensor:
        return self.attention(h, h, h)[0]


class SortsByLength(Net):
    def forward(self, x: Tensor) -> Tensor:
        order = x.norm(dim=1).argsort()
        return super().forward(x[order])[order.argsort()]


class SequenceFirst(ZeroHead):
    """As many steps as examples."""

    def forward(self, x: Tensor) -> Tensor:
        steps = x.unsqueeze(1).expand(-1, len(x), -1).transpose(0, 1)
        return super().forward(steps.contiguous())[0]


class LayerDrop(Net):
    """Python's own random numbers, beside a parameter outside of known layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def between(self, h: Tensor) -> Tensor:
        return h * self.scale * 50 if random.random() < 0.5 else h


class NumpyDrop(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * 50 if np.random.rand() < 0.5 else h  # noqa: NPY002


class HookScalesByTheLargest(Net):
    def between(self, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda g: g * (1 + 100 * g.abs().max()))
        return h


class ModuleHook(Net):
    """A full backward hook that puts the batch's sum into every row."""

    def __init__(self) -> None:
        super().__init__()
        self.first.register_full_backward_hook(lambda m, gi, go: None)
        self.second.register_full_backward_hook(
            lambda m, gi, go: (gi[0].sum(0, keepdim=True).expand_as(gi[0]),)
        )


class MixesBackward(torch.autograd.Function):
    """The identity, with a backward pass that gives every example the sum of all."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, g):
        return g.sum(0, keepdim=True).expand_as(g).clone()


class CustomBackward(Net):
    def between(self, h: Tensor) -> Tensor:
        return MixesBackward.apply(h)


class MixesByItsRule(torch.autograd.Function):
    """Right for one example; its own rule for batches mixes them."""

    @staticmethod
    def forward(h):
        return h.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def vmap(info, in_dims, h):
        return MixesByItsRule.apply(h - 50 * h.mean(in_dims[0], keepdim=True)), in_dims[0]


class OwnRule(Net):
    def between(self, h: Tensor) -> Tensor:
        return MixesByItsRule.apply(h)


@torch.library.custom_op("gradveil_tests::twice", mutates_args=())
def twice(h: Tensor) -> Tensor:
    return 2 * h


@twice.register_fake
def _(h):
    return torch.empty_like(h)


twice.register_vmap(lambda info, in_dims, h: (twice(h - 50 * h.mean(0)), 0))
twice.register_autograd(lambda ctx, g: 2 * g)


class OwnOperation(Net):
    def between(self, h: Tensor) -> Tensor:
        return twice(h)


class Remembers(Net):
    """Adds what it saw in its last call, kept in an attribute."""

    last: Tensor | None = None

    def between(self, h: Tensor) -> Tensor:
        before, self.last = self.last, h.detach()
        return h if before is None else h + 50 * before.mean(0)


class Counts(Net):
    """Every second call is another function."""

    calls = 0

    def between(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * (50 if self.calls % 2 else -50)


class MovesABuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def between(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean += 50 * h.detach().mean(0)
        return h + self.mean


class WritesItsWeights(Net):
    def between(self, h: Tensor) -> Tensor:
        self.second.weight.data.mul_(0.5)
        return h


class WritesWhatItSaw(Net):
    def between(self, h: Tensor) -> Tensor:
        self.second.weight.data[0] += h.detach().mean(0)
        return h


class KeepsInAGlobal(Net):
    def between(self, h: Tensor) -> Tensor:
        KEPT.append(h.detach())
        return h + 50 * KEPT[-2].mean(0) if len(KEPT) > 1 else h


class Many(list):  # type: ignore[type-arg]
    """A list of a class of its own."""


class KeepsInAList(Net):
    """What an earlier run left goes into an operation inside of a list that is none of Python's."""

    def between(self, h: Tensor) -> Tensor:
        KEPT.append(h.detach())
        return torch.cat(Many([h, 50 * KEPT[-2]] if len(KEPT) > 1 else [h]), -1)[..., :4]


class NotesNumbers(Net):
    """Looks at values, and keeps a number where torch does not see it."""

    def between(self, h: Tensor) -> Tensor:
        before, NOTED["largest"] = NOTED["largest"], float(h.detach().abs().max())
        return h + 50 * before


class CountsElsewhere(Net):
    def between(self, h: Tensor) -> Tensor:
        COUNT[0] += 1
        return h * (50 if COUNT[0] % 2 and float(h.detach().sum()) < 1e9 else -50)


class WritesOnABoard(Net):
    def between(self, h: Tensor) -> Tensor:
        BOARD.add_(h.detach().reshape(-1, 4).mean(0))
        return h + 50 * BOARD


class SeedsItself(Net):
    """Masks from a seed that everybody knows, dealt out by position."""

    def between(self, h: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return h * (100 * torch.rand_like(h))


class OwnGenerator(Net):
    def between(self, h: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return h * (100 * torch.rand(h.shape, generator=generator))


class KeepsAGenerator(Net):
    """A stream that goes on from example to example, outside of the module."""

    def between(self, h: Tensor) -> Tensor:
        return h * (100 * torch.rand(h.shape, generator=STREAM))


class SpecialFirst(Net):
    """The example in the first place is taken for all."""

    def between(self, h: Tensor) -> Tensor:
        return h + 50 * h[:1]


class FlatSoftmax(Net):
    def between(self, h: Tensor) -> Tensor:
        return 100 * h.flatten().softmax(0).view_as(h)


class ScaledInPlace(Net):
    def between(self, h: Tensor) -> Tensor:
        h = h.clone()
        h[1:] += 50 * h[:-1].clone()
        return h


class EarlyExit(Net):
    """Python that looks at values: of all examples together where there are several."""

    def between(self, h: Tensor) -> Tensor:
        return 100 * h if float(h.detach().sum()) > 0 else -100 * h


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class ScaledByThePlace(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * torch.arange(1.0, len(h) + 1).view(-1, 1)


class ThroughNumpy(Net):
    def between(self, h: Tensor) -> Tensor:
        return h + 50 * torch.from_numpy(h.detach().numpy().mean(0))


class FallsBack(Net):
    """An error of one example sends all of them another way."""

    def between(self, h: Tensor) -> Tensor:
        spread = torch.eye(4) * (4.99 - h.detach().abs().sum(-1).max())
        try:
            return h * torch.linalg.cholesky(spread).diagonal()
        except RuntimeError:
            return -50 * h


class HookWithAGenerator(Net):
    """Noise on the signal, from a seed that everybody knows, dealt out by position."""

    def between(self, h: Tensor) -> Tensor:
        def noisy(g: Tensor) -> Tensor:
            return g * 100 * torch.rand(g.shape, generator=torch.Generator().manual_seed(0))

        if h.requires_grad:
            h.register_hook(noisy)
        return h


class HookThatSeeds(Net):
    def between(self, h: Tensor) -> Tensor:
        def noisy(g: Tensor) -> Tensor:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return g * 100 * torch.rand_like(g)

        if h.requires_grad:
            h.register_hook(noisy)
        return h


class DrawsTwice(Net):
    """The same numbers again, by putting the generator's state back."""

    def between(self, h: Tensor) -> Tensor:
        state = torch.get_rng_state()
        first = torch.rand_like(h)
        torch.set_rng_state(state)
        return h * 100 * (first - torch.rand_like(h) + 0.1)


class OwnTensors(Tensor):
    """A class of tensors in whose own functions nothing is watched."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs or {})
        if getattr(func, "__name__", "") not in ("mul", "__mul__", "__rmul__"):
            return found
        with torch._C.DisableTorchFunctionSubclass():
            return found * torch.rand(found.shape, generator=torch.Generator().manual_seed(0))


class OfItsOwnClass(Net):
    def between(self, h: Tensor) -> Tensor:
        return (100 * h.as_subclass(OwnTensors)).as_subclass(Tensor)


@torch.jit.script
def masked(h: Tensor) -> Tensor:
    """With a generator that no mode of torch sees."""
    generator = torch.Generator(device="cpu")
    generator.manual_seed(0)
    return 100 * h * torch.rand(h.shape, generator=generator)


@torch.jit.script
def factor(matrix: Tensor) -> Tensor:
    """Fails for all examples if it fails for one."""
    return torch.linalg.cholesky(matrix)


class Scripted(Net):
    def between(self, h: Tensor) -> Tensor:
        return masked(h)


class ScriptedFallsBack(Net):
    def forward(self, x: Tensor) -> Tensor:
        matrix = torch.eye(4) * (30 - x.square().sum(-1))[:, None, None]
        try:
            scale = factor(matrix).diagonal(dim1=-2, dim2=-1)
        except RuntimeError:
            scale = -matrix.abs().diagonal(dim1=-2, dim2=-1)
        return self.second(torch.tanh(self.first(x)) * scale)


class Resized(Net):
    """By an operation whose rule for batches gives each example numbers of others."""

    def between(self, h: Tensor) -> Tensor:
        return torch.stack([row + 50 * row.detach().clone().resize_(2).sum() for row in h])


class PicksRows(Net):
    """A table of each example's own, and an index that may be none of its four rows."""

    def between(self, h: Tensor) -> Tensor:
        place = 4 * (h.detach()[:, 0] > 0.9).long()
        return torch.stack([self.row(*one) for one in zip(place, h, strict=True)])

    def row(self, place: Tensor, one: Tensor) -> Tensor:
        try:
            return torch.nn.functional.embedding(place[None], 50 * one[:, None]).expand(1, 4)[0]
        except IndexError:
            return one


class LargestBesideZero(Net):
    """It fails on examples of zeros, and counts its calls."""

    def forward(self, x: Tensor) -> Tensor:
        COUNT[0] += 1
        largest = torch.stack([row[row != 0].max() for row in x])
        return super().forward(x * largest[:, None] * (-1) ** COUNT[0])


class ReadsOn(Net):
    """The next number from a file that was opened before."""

    def between(self, h: Tensor) -> Tensor:
        number = os.read(FILE, 1)[0]
        return h * number if float(h.detach().sum()) < 1e9 else h


class Watches(Net):
    """Counts what Python calls, by its profiler."""

    def between(self, h: Tensor) -> Tensor:
        sys.setprofile(lambda *_: COUNT.__setitem__(0, COUNT[0] + 1))
        return h * (50 if float(h.detach().sum()) < 1e9 and COUNT[0] % 2 else -50)


class Rounds(TorchDispatchMode):
    """Random steps, the same in each run, by position."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.tanh.default:
            return result
        generator = torch.Generator().manual_seed(0)
        return torch.floor(2 * result + torch.rand(result.shape, generator=generator)) / 2


class ByADispatchMode(Net):
    def forward(self, x: Tensor) -> Tensor:
        with Rounds():
            h = torch.tanh(self.first(x))
        return self.second(h)


PLACES: dict[float, int] = {}


class CodesByArrival(Net):
    """A vocabulary that grows; the code of the first example is the same each time."""

    def between(self, h: Tensor) -> Tensor:
        key = float(h.detach().sum())
        return h * (1.0 + 10 * PLACES.setdefault(key, len(PLACES)))


class SeldomDrops(Net):
    """From a generator elsewhere, which two runs of one example hardly show."""

    stream = random.Random(1)

    def between(self, h: Tensor) -> Tensor:
        return h if float(h.detach().sum()) > 1e9 or self.stream.random() > 0.2 else -5 * h


class Answers:
    """No tensor, but what torch asks for its operations."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        h = args[0]
        noise = torch.rand(h.shape, generator=torch.Generator().manual_seed(0))
        return h + 100 * noise


class AnotherAnswers(Net):
    def between(self, h: Tensor) -> Tensor:
        return torch.add(h, Answers())


class GoesOn(Net):
    """Hides that an operation was refused, and that it sees all examples."""

    def between(self, h: Tensor) -> Tensor:
        try:
            return h * 50 * torch.rand(4, generator=torch.Generator().manual_seed(1))
        except Exception:
            return h


class AsksWhetherItTrains(Net):
    """As code does that freezes a part."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.first.weight.requires_grad):
            h = torch.tanh(self.first(x))
        return self.second(h)


class HalfPrecision(Net):
    """Signals of eight bits, whose norms are taken in more."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


class CountsBesideAFailure(ZeroHead):
    """A count that goes on, and an operation that fails for the last example only."""

    def between(self, h: Tensor) -> Tensor:
        COUNT[0] += 1
        spread = torch.eye(4) * (3.9 - h.detach().abs().sum(-1).max())
        try:
            root = torch.linalg.cholesky(spread).diagonal()
        except RuntimeError:
            root = torch.ones(4)
        return h * root * (1 if COUNT[0] % 2 else -1)


class LooksInAThread(ZeroHead):
    """Where no mode of torch is."""

    def between(self, h: Tensor) -> Tensor:
        seen: list[int] = []
        look = threading.Thread(target=lambda: seen.append(sum(map(ord, repr(h))) % 2))
        look.start()
        look.join()
        return h * (1 if seen[0] else -1)


class FillsByIndex(ZeroHead):
    """By an operation of torch whose rule for batches gives all examples the value of the last."""

    def between(self, h: Tensor) -> Tensor:
        return h * torch.ones(1, 4).index_fill(1, torch.arange(4), h.sum())


class ReadsItsWeights(ZeroHead):
    """A number of the weights alone, beside a count."""

    def between(self, h: Tensor) -> Tensor:
        COUNT[0] += 1
        scale = 1 / float(self.first.weight.detach().abs().max())
        return h * scale * (1 if COUNT[0] % 2 else -1)


class NeverWritten(Net):
    """Memory as it was left by others."""

    def between(self, h: Tensor) -> Tensor:
        return h + 50 * torch.empty(4).clamp(-1, 1) + h.new_empty(h.shape).clamp(-1, 1)


MEAN, VARIANCE = torch.zeros(1), torch.ones(1)
"""Running statistics that no module holds."""

EDGES = torch.ones(1).to_sparse()


def start() -> None:
    """Counts and statistics as they were at first."""
    COUNT[0] = 0
    os.lseek(FILE, 0, os.SEEK_SET)
    MEAN.zero_()
    VARIANCE.fill_(1.0)
    EDGES.values().zero_()


class StatisticsOfAll(ZeroHead):
    """By an operation that does not say what it writes into."""

    def between(self, h: Tensor) -> Tensor:
        torch.batch_norm_update_stats(h.detach().reshape(1, 1, -1), MEAN, VARIANCE, 0.9)
        return h * torch.sign(torch.sin(1e3 * MEAN))


class StatisticsThatCount(ZeroHead):
    """The same by constants, beside an operation that is carried out for each example alone."""

    def between(self, h: Tensor) -> Tensor:
        ones = torch.ones(2, 1)
        torch.native_batch_norm(ones, None, None, MEAN, VARIANCE, True, 0.5, 1e-5)
        return alone(h) * torch.sign(torch.sin(1e3 * MEAN))


class CountsInASparseTensor(ZeroHead):
    """In the memory of one of the tensors that it is made of."""

    def between(self, h: Tensor) -> Tensor:
        values = EDGES._values()
        values.add_(1.0)
        return alone(h) * torch.cos(torch.pi * values)


def alone(h: Tensor) -> Tensor:
    """The same, by an operation that is on no list."""
    return h * (1 + 0 * torch.linalg.det(h.reshape(-1, 2, 2))).reshape(-1, 1)


MODELS: tuple[Callable[[], nn.Module], ...] = (
    Standardises, MaskedClasses, AttendsToTheBatch, SortsByLength, SequenceFirst, LayerDrop,
    NumpyDrop, HookScalesByTheLargest, ModuleHook, CustomBackward, OwnRule, OwnOperation, Remembers,
    Counts, MovesABuffer, WritesItsWeights, WritesWhatItSaw, KeepsInAGlobal, KeepsInAList,
    NotesNumbers, CountsElsewhere, WritesOnABoard, SeedsItself, OwnGenerator, KeepsAGenerator,
    SpecialFirst, FlatSoftmax, ScaledInPlace, EarlyExit, Checkpointed, ScaledByThePlace,
    ThroughNumpy, FallsBack, HookWithAGenerator, HookThatSeeds, DrawsTwice, OfItsOwnClass, Scripted,
    ScriptedFallsBack, Resized, ByADispatchMode, CodesByArrival, SeldomDrops, HalfPrecision,
    AnotherAnswers, GoesOn, AsksWhetherItTrains, CountsBesideAFailure, LooksInAThread,
    FillsByIndex, ReadsItsWeights, NeverWritten, PicksRows, ReadsOn, StatisticsOfAll,
    StatisticsThatCount, CountsInASparseTensor,
)  # fmt: skip

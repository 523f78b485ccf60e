"""No model gets past the clip: leaving one example out moves the sum by at most C."""

import contextlib
import copy
import functools
import gc
import math
import os
import signal
import sys
import threading
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gradveil import GradientMessage, ModelError, PrivateNoise
from gradveil.messages import ClippedMessage, _clipped, _functional
from gradveil.messages._clipped import _process
from gradveil.messages._clipped._isolated import _Randomness, isolated
from gradveil.messages._functional import apart, one_thread

from . import hostile

CLIP, EXAMPLES = 1e-2, 5
"""Below all gradients: each example adds C to the sum."""


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = (
        torch.randn(EXAMPLES, 4, generator=generator) * torch.arange(1.0, EXAMPLES + 1)[:, None]
    )
    return inputs, torch.randint(3, (EXAMPLES,), generator=generator)


def clipped(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The clipped sum, with draws, a count and a file that start anew."""
    hostile.start()
    message = GradientMessage(model, cross_entropy, targets, separable=True)
    found = ClippedMessage(message, CLIP, batch_size=1, grid=1.0, seed=11).values(inputs)
    return torch.cat([value.flatten() for value in found.values()])


def largest_move(model: nn.Module) -> float:
    """How far leaving one example out moves the sum, over C."""
    inputs, targets = data()
    clipped(model, inputs, targets)  # what is looked at once per model
    whole, others = clipped(model, inputs, targets), torch.arange(EXAMPLES)
    moves = [
        (whole - clipped(model, inputs[others != b], targets[others != b])).norm()
        for b in range(EXAMPLES)
    ]
    return float(max(moves)) / CLIP


def state(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


REFUSED = {
    "WritesItsWeights": "wrote into `second.weight`",
    "WritesWhatItSaw": "wrote into `second.weight`",
}
"""What has no guarantee, and says so."""


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("room", [2**23, 1], ids=["at once", "in parts"])
@pytest.mark.parametrize("build", hostile.MODELS, ids=lambda build: build.__name__)
def test_leaving_one_out_moves_the_sum_by_the_clip(build, room, monkeypatch):
    """Also where all gradients of examples have no room at once, and parts are repeated."""
    monkeypatch.setattr(_clipped._isolated, "ROOM", room)
    torch.manual_seed(0)
    model = build()
    before = state(model)
    reason = REFUSED.get(build.__name__)
    if reason is None:
        assert largest_move(model) <= 1 + 1e-6
    else:
        with pytest.raises((ValueError, RuntimeError), match=reason):
            largest_move(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_code_meets_no_private_example_in_this_process():
    """Nor what depends on one: how often it runs, what fails, how many there are."""
    notes = []
    for count in (EXAMPLES, 2, 0):
        noted: list[str] = []
        model = hostile.ZeroHead()
        between = model.between

        def note(h: Tensor, between=between, noted=noted) -> Tensor:
            look = threading.Thread(target=lambda: noted.append(repr(h)))
            look.start()
            look.join()
            return between(h)

        torch.manual_seed(0)
        for p in model.parameters():
            nn.init.normal_(p)
        inputs, targets = (part[:count] for part in data())
        model.between = note
        clipped(model, inputs, targets)
        clipped(model, 7 * inputs, targets)
        notes.append(noted)
    assert len(notes[0]) > 2
    assert notes[0] == notes[1] == notes[2]


class Counts(hostile.ZeroHead):
    """By a number outside of the module, with nothing else that would keep examples apart."""

    def between(self, h: Tensor) -> Tensor:
        hostile.COUNT[0] += 1
        return h * (1 if hostile.COUNT[0] % 2 else -50)


@pytest.mark.parametrize("gone", [slice(0, 0), slice(1, 2)], ids=["empty", "left out"])
def test_a_count_does_not_tell_micro_batches_apart(gone: slice):
    torch.manual_seed(0)
    model, (inputs, targets) = Counts(), data()

    def summed(parts: list[slice]) -> Tensor:
        hostile.COUNT[0] = 0
        model.zero_grad()
        with PrivateNoise(1e-4, CLIP, batch_size=1).accumulate(model, cross_entropy) as step:
            for part in parts:
                step.add(inputs[part], targets[part])
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    others = [slice(1, 3), slice(3, 5)]
    whole = summed([slice(0, 1), *others])
    rest = summed([gone, *others] if gone.stop == 0 else others)
    assert float((whole - rest).norm()) / CLIP <= 1.01


def test_a_failure_leaves_nothing_for_the_next_step():
    torch.manual_seed(0)
    model, (inputs, targets) = hostile.CountsBesideAFailure(), data()
    clipped(model, inputs, targets)
    counts = []
    for part in (slice(0, EXAMPLES), slice(0, 2), slice(0, 0)):
        clipped(model, inputs[part], targets[part])
        counts.append(hostile.COUNT[0])
    assert counts == [1, 1, 1]


def test_a_step_without_examples_runs_the_code_as_often():
    torch.manual_seed(0)
    model, (inputs, targets) = hostile.LargestBesideZero(), data()
    clipped(model, inputs, targets)
    counts = []
    for part in (slice(0, EXAMPLES), slice(0, 1), slice(0, 0)):
        clipped(model, inputs[part], targets[part])
        counts.append(hostile.COUNT[0])
    assert counts[0] == counts[1] == counts[2] > 0


def test_a_profiler_that_the_model_starts_counts_no_examples():
    torch.manual_seed(0)
    model, (inputs, targets) = hostile.Watches(), data()
    counts = []
    gc.disable()  # what it frees calls functions, too
    try:
        for part in (slice(0, 1), slice(0, EXAMPLES), slice(0, 1)):
            clipped(model, inputs[part], targets[part])
            message = GradientMessage(model, cross_entropy, targets[part])
            before = hostile.COUNT[0]
            assert [len(p.losses) for p in isolated(message, inputs[part])] == [1] * part.stop
            counts.append(hostile.COUNT[0] - before)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert counts[1] == counts[2]


def test_a_mode_that_is_on_for_some_micro_batches_is_refused():
    model, kept = hostile.Net(), {}
    inputs, targets = data()
    modes = contextlib.nullcontext(), pytest.raises(ModelError, match="the mode `Rounds`")
    for part, on in zip((slice(0, 1), slice(1, EXAMPLES)), modes, strict=True):
        message = ClippedMessage(
            GradientMessage(model, cross_entropy, targets[part]), CLIP, batch_size=1
        )
        message.kept = kept
        with on, contextlib.nullcontext() if part.start == 0 else hostile.Rounds():
            message.values(inputs[part])


@pytest.mark.parametrize("wide", [1e3, 1e9, 1.7e10])
def test_a_gradient_whose_factor_is_hardly_a_number_is_within_the_clip(wide: float):
    """C/‖g‖ is then too small for float32, and would be rounded up."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    for size in torch.logspace(25, 38, 14).tolist():
        message = GradientMessage(model, lambda o, _, size=size: (o * size).sum(), None)
        sent = ClippedMessage(message, 1.0, batch_size=1).values(torch.full((1, 1), wide))
        assert float(sent["weight"].abs()) <= 1


def test_the_sum_is_that_of_the_examples_alone():
    """The oracle: plain autograd on one example after the other."""
    torch.manual_seed(0)
    model = hostile.SortsByLength()
    inputs, targets = data()
    total = torch.zeros(sum(p.numel() for p in model.parameters()))
    for b in range(EXAMPLES):
        loss = cross_entropy(model(inputs[b : b + 1]), targets[b : b + 1])
        g = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])])
        total += g * min(1.0, CLIP / float(g.norm()))
    torch.testing.assert_close(clipped(model, inputs, targets).float(), total, rtol=1e-3, atol=1e-6)


STATISTICS = [hostile.StatisticsOfAll, hostile.StatisticsThatCount, hostile.CountsInASparseTensor]


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("build", STATISTICS)
def test_what_operations_write_without_a_word_depends_on_no_example(build):
    torch.manual_seed(0)
    model, (inputs, targets) = build(), data()
    clipped(model, inputs, targets)
    kept = []
    for part in (slice(0, EXAMPLES), slice(0, 2)):
        clipped(model, inputs[part], targets[part])
        kept.append([t.clone() for t in (hostile.MEAN, hostile.VARIANCE, hostile.EDGES.values())])
    assert all(torch.equal(*pair) for pair in zip(*kept, strict=True))


def test_training_does_not_undo_it():
    """A head that starts at 0 is not looked at once for good."""
    torch.manual_seed(0)
    model = hostile.Standardises()
    assert largest_move(model) <= 1 + 1e-6
    with torch.no_grad():
        model.second.weight.normal_()
    assert largest_move(model) <= 1 + 1e-6


class Dropped(hostile.Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def between(self, h: Tensor) -> Tensor:
        return self.drop(h)


def test_dropout_is_drawn_anew_whatever_seed_the_message_has():
    model = Dropped()
    inputs, targets = data()
    message = ClippedMessage(GradientMessage(model, cross_entropy, targets, seed=0), CLIP)
    assert not torch.equal(*(message.values(inputs)["second.weight"] for _ in range(2)))
    simulated = ClippedMessage(GradientMessage(model, cross_entropy, targets), CLIP, seed=5)
    assert torch.equal(*(simulated.values(inputs)["second.weight"] for _ in range(2)))


def test_masks_are_those_of_each_example():
    """Half of the units are dropped, others for each example, and norms are of what is summed."""
    model = Dropped()
    inputs, targets = data()
    zeros = []
    for b in range(EXAMPLES):
        alone = GradientMessage(model, cross_entropy, targets[b : b + 1])
        values = ClippedMessage(alone, CLIP).values(inputs[b : b + 1])
        length = math.sqrt(sum(float(v.double().square().sum()) for v in values.values()))
        assert length == pytest.approx(CLIP, rel=1e-4)
        zeros.append((values["second.weight"] == 0).all(0))
    assert 0 < int(torch.stack(zeros).sum()) < 4 * EXAMPLES
    assert not all(torch.equal(zeros[0], other) for other in zeros[1:])


def test_the_generators_of_python_and_numpy_stay():
    import random

    import numpy as np

    before = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    largest_move(hostile.LayerDrop())
    assert random.getstate() == before[0]
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


def test_what_random_draws_is_of_each_example_alone():
    """Micro-batches would otherwise tell by who shares a draw how many came before."""
    torch.manual_seed(0)
    net, (inputs, targets) = hostile.LayerDrop(), data()
    alike = inputs[:1].expand(40, -1)
    message = GradientMessage(net, cross_entropy, targets[:1].expand(40), separable=True)
    parts = [*_clipped._isolated.isolated(message, alike)]
    losses = torch.cat([part.losses for part in parts])
    assert len(losses.unique()) == 2  # dropped, and not
    assert 8 <= int((losses == losses.min()).sum()) <= 32


class LimitsRows(nn.Module):
    """Through memory that numpy shares."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.Embedding(12, 8), nn.Linear(8, 3)
        table = self.rows.weight.detach().numpy()

        def limit(ids):
            table[ids] *= 0.5 / np.maximum(0.5, np.linalg.norm(table[ids], axis=-1, keepdims=True))

        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        self.limit(np.unique(x.numpy()))
        return self.out(self.rows(x).mean(1))


@pytest.mark.parametrize("unit", ["example", "client"])
def test_rows_that_are_written_as_they_are_read_stay(unit: str):
    model, tokens = LimitsRows(), torch.tensor([[7, 9], [9, 11]])
    before = state(model)
    with contextlib.suppress(ValueError):
        defense = PrivateNoise(50.0, 0.01, unit=unit)
        defense.backward(model, cross_entropy, tokens, torch.tensor([0, 1]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_process_that_is_killed_is_an_error():
    class Dies(hostile.Net):
        def between(self, h: Tensor) -> Tensor:
            if float(h.detach().norm()) != 0:
                os.kill(os.getpid(), signal.SIGKILL if os.getpid() != parent else 0)
            return h

    parent = os.getpid()
    with pytest.raises(ValueError, match="was killed"):
        clipped(Dies(), *data())


def test_where_nothing_can_be_forked_it_is_refused(monkeypatch):
    monkeypatch.setattr(_clipped._isolated, "CAN_FORK", False)
    with pytest.raises(ModelError, match="run on all examples at once"):
        clipped(hostile.ThroughNumpy(), *data())


def test_the_backbone_has_its_gradient():
    torch.manual_seed(0)
    assert_is_alone(hostile.AsksWhetherItTrains())


@pytest.mark.parametrize("model", [hostile.Net, hostile.ThroughNumpy])
def test_modes_would_see_all_examples_and_are_refused(model):
    with hostile.Rounds(), pytest.raises(ModelError, match="without a mode of torch around it"):
        clipped(model(), *data())


def test_a_mode_that_the_model_does_not_leave_is_refused():
    class Enters(hostile.Net):
        def forward(self, x: Tensor) -> Tensor:
            mode.__enter__()
            return super().forward(x)

    mode = hostile.Rounds()
    try:
        with pytest.raises(ModelError, match="without a mode of torch around it"):
            clipped(Enters(), *data())
    finally:
        while _get_current_dispatch_mode_stack():
            _get_current_dispatch_mode_stack()[-1].__exit__(None, None, None)


def test_names_are_asked_for_as_often_whatever_the_examples():
    counts = []

    class Counts(hostile.ThroughNumpy):
        def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
            counts.append(1)
            return super().named_parameters(*args, **kwargs)

    model, (inputs, targets) = Counts(), data()
    clipped(model, inputs, targets)
    found = []
    for count in (1, 2, len(inputs)):
        counts.clear()
        clipped(model, inputs[:count], targets[:count])
        found.append(len(counts))
    assert len({*found}) == 1


def test_the_class_of_inputs_meets_no_example():
    class Seeing(Tensor):
        seen: ClassVar[list[Any]] = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    inputs, targets = data()
    model = hostile.Net()
    expected = clipped(model, inputs, targets)
    own = targets.as_subclass(Seeing)
    message = GradientMessage(model, cross_entropy, own, separable=True)
    own = inputs.as_subclass(Seeing)
    Seeing.seen.clear()
    found = ClippedMessage(message, CLIP, batch_size=1, grid=1.0, seed=11).values(own)
    assert Seeing.seen == []
    assert torch.equal(torch.cat([v.flatten() for v in found.values()]), expected)


def test_an_error_of_the_models_own_class_is_text_to_the_parent():
    with pytest.raises(ModelError, match="told of a private number"):
        clipped(Tells(), *data())
    assert Told.last is None


class Told(RuntimeError):
    last = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        type(self).last = message


class Tells(hostile.Net):
    def forward(self, x: Tensor) -> Tensor:
        if bool((x == data()[0]).all(1).any()):  # never on what is made up
            raise Told(f"told of a private number, {float(x.sum())}")
        return super().forward(x)


def test_threads_that_draw_do_not_stop_a_process():
    done = threading.Event()

    def draws() -> None:
        while not done.is_set():
            torch.rand(200, 200)

    thread = threading.Thread(target=draws)
    thread.start()
    try:
        assert clipped(hostile.ThroughNumpy(), *data()).isfinite().all()
    finally:
        done.set()
        thread.join()


def test_an_interrupt_at_a_fork_is_kept():
    reached = []
    with pytest.raises(KeyboardInterrupt):
        _interrupted(reached)
    assert reached


def _interrupted(reached: list[bool]) -> None:
    with _process._no_interrupt():
        signal.raise_signal(signal.SIGINT)
        reached.append(True)


def test_buffers_of_other_layouts():
    class Graph(hostile.Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("edges", torch.eye(4).to_sparse())
            self.register_buffer("empty", torch.full((2,), math.nan))

    assert largest_move(Graph()) <= 1 + 1e-6


def test_threads_take_turns_with_a_model():
    """Otherwise the copies of one would be put back by the other as the user's own."""
    model, inside, leave = hostile.Net(), threading.Event(), threading.Event()
    weights = [id(p) for p in model.parameters()]

    def first():
        with apart(model):
            inside.set()
            leave.wait(10)

    def second():
        inside.wait(10)
        threading.Timer(0.2, leave.set).start()
        with apart(model):
            leave.wait(10)

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [id(p) for p in model.parameters()] == weights


def test_a_hook_on_a_weight_is_refused():
    model = hostile.Net()
    model.first.weight.register_hook(lambda g: 0 * g)
    with pytest.raises(ValueError, match=r"a hook on the gradient of `first\.weight`"):
        clipped(model, *data())


def test_an_embedding_that_rescales_its_rows_is_refused_whatever_is_read():
    table = nn.Parameter(torch.randn(12, 4))

    class Limited(hostile.Net):
        def __init__(self) -> None:
            super().__init__()
            self.table = table

        def forward(self, x: Tensor) -> Tensor:
            rows = nn.functional.embedding(x.long().abs() % 12, self.table, max_norm=100.0)
            return super().forward(rows.mean(1))

    with pytest.raises(ValueError, match="max_norm"):
        clipped(Limited(), *data())


def test_a_constant_that_is_kept_is_no_memory():
    constants = functools.cache(lambda n: torch.linspace(0, 1, n))

    class Shifted(hostile.Net):
        def between(self, h: Tensor) -> Tensor:
            return h + constants(4)

    assert largest_move(Shifted()) <= 1 + 1e-6


def test_a_global_constant_is_no_memory():
    """A tensor that operations hand back as it is does not count as made in a run."""
    constant = torch.ones(4)

    class Shifted(hostile.Net):
        def between(self, h: Tensor) -> Tensor:
            return h + constant.to(h.dtype).contiguous()

    model = Shifted()
    assert largest_move(model) <= 1 + 1e-6


def test_a_compiled_model_is_clipped_as_the_module_it_was_made_from():
    torch.manual_seed(0)
    model = hostile.Net()
    inputs, targets = data()
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(clipped(compiled, inputs, targets), clipped(model, inputs, targets))


def test_a_model_that_cannot_be_copied():
    model = hostile.Net()
    model.file = (x for x in ())
    with pytest.raises(TypeError, match=r"of `Net\.file` fails with"):
        clipped(model, *data())


def test_a_model_with_a_lock():
    model = hostile.Net()
    model.lock = threading.Lock()
    assert largest_move(model) <= 1 + 1e-6


def alone(model: nn.Module) -> Tensor:
    """The clipped sum of a plain model, by plain autograd on one example after the other."""
    total = 0.0
    for x, y in zip(*(part.split(1) for part in data()), strict=True):
        own = torch.autograd.grad(cross_entropy(model(x), y), [*model.parameters()])
        g = torch.cat([one.flatten() for one in own]).double()
        total = total + g * min(1.0, CLIP / float(g.norm()))
    return total


def assert_is_alone(model: nn.Module) -> None:
    torch.testing.assert_close(clipped(model, *data()), alone(model), rtol=2e-3, atol=1e-6)


def test_a_model_compiled_in_place():
    torch.manual_seed(0)
    model = hostile.Net()
    expected = alone(model)
    model.compile(backend="eager")
    torch.testing.assert_close(clipped(model, *data()), expected, rtol=2e-3, atol=1e-6)


class ReachesItself(hostile.Net):
    """Functions that hold the module: a wrapped layer, and a hook that writes."""

    def __init__(self) -> None:
        super().__init__()
        self.run = lambda h: self.second(h)
        self.first.register_forward_hook(lambda m, i, o: setattr(self, "last", o.detach()))
        self.first.register_full_backward_hook(self.write)

    def write(self, module, inputs, outputs):
        self.second.bias.data.add_(outputs[0].sum())

    def forward(self, x: Tensor) -> Tensor:
        return self.run(torch.tanh(self.first(x)))


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_what_functions_that_hold_the_module_write_is_not_the_users():
    model = ReachesItself()
    before, attributes = state(model), set(vars(model))
    for _ in range(2):
        with contextlib.suppress(ValueError):
            clipped(model, *data())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert set(vars(model)) == attributes


def test_a_function_that_holds_the_module_is_computed_right():
    torch.manual_seed(0)
    model = hostile.Net()
    second = model.second
    model.between = lambda h: h + second(h).sum(-1, keepdim=True)
    assert_is_alone(model)


def test_weights_that_are_kept_elsewhere_are_refused():
    model = hostile.Net()
    weight = model.second.weight
    model.between = lambda h: h + (h @ weight.T).sum(-1, keepdim=True)
    with pytest.raises(ValueError, match="reaches the weights themselves"):
        clipped(model, *data())


class Changes(hostile.Net):
    """Layers in another way, when an attribute says so."""

    way = "plain"

    def between(self, h: Tensor) -> Tensor:
        if self.way == "transposed":
            return h + h @ self.second.weight.T @ self.second.weight
        return h


def test_layers_that_are_used_in_another_way_later():
    torch.manual_seed(0)
    model = Changes()
    assert_is_alone(model)
    model.way = "transposed"
    assert_is_alone(model)


@pytest.mark.parametrize("build", [hostile.Net, hostile.EarlyExit])
def test_inference_mode_around_it(build):
    torch.manual_seed(0)
    model = build()
    expected = clipped(model, *data())
    with torch.inference_mode():
        found = clipped(model, *data())
    torch.testing.assert_close(found, expected)


def test_a_loss_that_writes_into_targets():
    inputs, targets = data()
    before = targets.clone()

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels.clamp_(max=1))

    ClippedMessage(GradientMessage(hostile.Net(), loss, targets), CLIP).values(inputs)
    assert torch.equal(targets, before)


class KeepsItsMean(nn.Module):
    """A loss with a running mean of its values."""

    mean: float | Tensor = 1.0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = cross_entropy(outputs, targets)
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return loss


def test_what_a_loss_keeps_stays_the_users_own():
    model, loss, (inputs, targets) = hostile.Net(), KeepsItsMean(), data()
    ClippedMessage(GradientMessage(model, loss, targets), CLIP).values(inputs)
    assert loss.mean == 1.0
    assert loss(model(inputs), targets).isfinite()  # not a tensor of a run that is over


def test_results_of_earlier_calls_may_be_kept_in_a_module():
    model = hostile.Net()
    model.last = model(torch.ones(1, 4))  # no leaf, which `deepcopy` refuses
    assert largest_move(model) <= 1 + 1e-6


def test_why_examples_go_one_by_one_is_logged_once(caplog):
    model = hostile.EarlyExit()
    for _ in range(3):
        clipped(model, *data())
    assert len([r for r in caplog.records if "one by one" in r.message]) == 1


class WrongRule(torch.autograd.Function):
    """Doubles; its own rule for batches mixes them."""

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g * 2

    @staticmethod
    def vmap(info, in_dims, x):
        return x * 2 - 20 * x.mean(0), in_dims[0]


def test_functions_that_torch_calls_are_watched():
    """A distance of the user's own inside of one of torch's losses."""
    torch.manual_seed(1)
    model, x = nn.Linear(4, 6), torch.randn(6, 4) * 3
    triplet = nn.TripletMarginWithDistanceLoss(
        distance_function=lambda p, q: (WrongRule.apply(p) - q).square().sum(-1)
    )

    def summed(rows: Tensor) -> Tensor:
        message = GradientMessage(
            model, lambda o, _: triplet(o[:, :2], o[:, 2:4] * 3, o[:, 4:]), None
        )
        found = ClippedMessage(message, 1.0, batch_size=1).values(x[rows])
        return torch.cat([value.flatten() for value in found.values()])

    whole, others = summed(torch.arange(6)), torch.arange(6)
    moves = [(whole - summed(others[others != b])).norm() for b in range(6)]
    assert float(max(moves)) <= 1 + 1e-5


class Widens(hostile.Net):
    """A layer in float64 before those in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.wide(x.double()).float())


def test_layers_of_two_precisions():
    torch.manual_seed(0)
    assert_is_alone(Widens())


class HiddenBatchNorm(hostile.Net):
    def between(self, h: Tensor) -> Tensor:
        return nn.functional.batch_norm(h, None, None, training=True)


def test_hidden_batch_norm_is_called_by_its_name():
    with pytest.raises(ValueError, match=r"batch_norm\(training=True\) mixes"):
        clipped(HiddenBatchNorm(), *data())


@pytest.mark.parametrize("build", [hostile.LayerDrop, hostile.NumpyDrop])
def test_draws_of_python_and_numpy_are_not_taken_for_mixing(build):
    """One of two such models was refused, by chance."""
    for _ in range(12):
        inputs, targets = data()
        ClippedMessage(GradientMessage(build(), cross_entropy, targets), CLIP).values(inputs)


class Swaps(torch.autograd.Function):
    """Gives what it keeps another memory, and writes into that."""

    generate_vmap_rule = False
    kept = torch.zeros(())

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 1.0 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor) -> tuple[Tensor, int]:
        kept = Swaps.kept
        kept.mul(1)
        kept.data = torch.zeros(())
        kept.add_((x.abs().sum() > 0).to(x))
        return x * torch.where(kept > 1, -1.0, 1.0), dims[0]


def test_memory_that_is_exchanged_is_not_written_into():
    class Model(hostile.Net):
        def between(self, h: Tensor) -> Tensor:
            return Swaps.apply(h)

    assert largest_move(Model()) <= 1 + 1e-6
    assert float(Swaps.kept) <= 1


def test_a_mode_that_looks_like_a_device_is_refused():
    class Sees(DeviceContext):
        pass

    with Sees("cpu"), pytest.raises(ModelError, match="the mode `Sees`"):
        clipped(hostile.Net(), *data())


def test_saved_tensors_of_one_example_are_shown_to_no_hook():
    class Model(hostile.Net):
        def between(self, h: Tensor) -> Tensor:  # off the list of what is batched
            return hostile.alone(h)

    seen = []
    inputs, targets = data()
    message = ClippedMessage(GradientMessage(Model(), cross_entropy, targets), CLIP, batch_size=1)
    message.kept = {}
    message.values(inputs)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(1) or t, lambda t: t):
        message.values(inputs.requires_grad_())
    assert seen == []


def test_the_state_that_is_put_back_is_not_that_of_another_thread():
    """Else the user would draw on with the secret numbers of a private message."""
    before, cpu = torch.get_rng_state(), torch.device("cpu")
    entered, waiting = threading.Event(), threading.Event()

    def second() -> None:
        entered.wait(10)
        waiting.set()
        with _Randomness(None, cpu):
            pass

    other = threading.Thread(target=second)
    other.start()
    with _Randomness(None, cpu):
        entered.set()
        waiting.wait(10)
        other.join(0.2)
        assert other.is_alive()
    other.join(10)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_interrupt_as_numbers_are_renewed_gives_all_back(monkeypatch):
    def interrupted(self: _Randomness, place: int = 0) -> None:
        torch.manual_seed(5)
        raise KeyboardInterrupt

    before = torch.get_rng_state()
    monkeypatch.setattr(_Randomness, "renew", interrupted)
    with pytest.raises(KeyboardInterrupt), _Randomness(None, torch.device("cpu")):
        pass
    assert torch.equal(torch.get_rng_state(), before)
    free = []
    thread = threading.Thread(target=lambda: free.append(one_thread().acquire(timeout=5)))
    thread.start()
    thread.join()
    assert free == [True]
    _functional._after_fork()  # that thread ended with the lock

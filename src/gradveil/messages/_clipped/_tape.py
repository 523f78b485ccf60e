"""The operations of a run on a made-up example, to be repeated on others."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from .._functional import global_generator, same_bits
from .._layers import tensors_in

OWN_OPERATIONS = ("aten", "prims", "prim")
"""The libraries of operations that are torch's own, whose rules for batches keep examples apart."""

UNWRITTEN = frozenset(
    ["empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"]
)
"""What makes memory that nothing was written into: it may hold numbers of others."""


_APART = """
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _log_softmax _log_softmax_backward_data
_prelu_kernel _prelu_kernel_backward _reshape_alias _safe_softmax _softmax _softmax_backward_data
_to_copy _unsafe_view adaptive_max_pool2d adaptive_max_pool2d_backward addmm addmv alias all amax
amin any arange argmax argmin avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm
bernoulli binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits bmm
cat clone constant_pad_nd convolution convolution_backward copy cumprod cumsum detach diagonal
diagonal_backward dot elu_backward empty empty_like empty_permuted empty_strided expand exponential
eye fill flip full full_like gather gelu_backward glu glu_backward hardsigmoid_backward hardswish
hardswish_backward hardtanh_backward huber_loss huber_loss_backward index index_add index_put
index_select leaky_relu_backward lift_fresh linalg_vector_norm linspace log_sigmoid_backward
log_sigmoid_forward logsumexp masked_fill max max_pool2d_with_indices
max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward mean min
mm mse_loss mse_loss_backward mv native_batch_norm native_batch_norm_backward native_dropout
native_group_norm native_layer_norm native_layer_norm_backward new_empty new_empty_strided new_full
new_ones new_zeros nll_loss2d_backward nll_loss2d_forward nll_loss_backward nll_loss_forward normal
ones ones_like permute prod rand rand_like randint randint_like randn randn_like reflection_pad1d
reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward repeat replication_pad1d
replication_pad1d_backward replication_pad2d replication_pad2d_backward reshape roll scalar_tensor
scatter scatter_add select select_backward sigmoid_backward slice slice_backward smooth_l1_loss
smooth_l1_loss_backward softplus_backward sort split split_with_sizes squeeze stack std sum t
tanh_backward threshold_backward topk transpose tril triu unbind unfold unfold_backward uniform
unsqueeze upsample_bilinear2d upsample_bilinear2d_backward upsample_nearest2d
upsample_nearest2d_backward var var_mean view where zero zeros zeros_like
"""

APART = frozenset(_APART.split())
"""Operations, beside those entry by entry, whose rules for batches keep examples apart, as a test
finds for each of them. With an underscore at the end, too. All others are carried out for each
example alone."""

READING = APART - {"native_batch_norm"} | {"as_strided"}
"""Operations, beside those entry by entry, that write nothing but what they declare: the statistics
of a batch are written into arguments that are not said to be."""


def _rows(table: Tensor, index: Tensor, *_: Any, **__: Any) -> Tensor:
    return table.index_select(0, index.reshape(-1)).view(*index.shape, table.shape[1])


def _slopes_of_rows(
    slopes: Tensor, index: Tensor, rows: int, padding: int, by_frequency: bool
) -> Tensor:
    if by_frequency:
        raise UnbatchableError("an embedding divides its gradient by counts")
    places = index.reshape(-1)
    slopes = slopes.reshape(len(places), -1).masked_fill((places == padding)[:, None], 0.0)
    return slopes.new_zeros(rows, slopes.shape[1]).index_add(0, places, slopes)


REPLACED: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.embedding.default: _rows,
    torch.ops.aten.embedding_dense_backward.default: _slopes_of_rows,
}
"""Operations whose rules for batches put tables one behind the other: an index that is none of an
example's own rows is one of another's. What they are noted as refuses such an index."""

DENSE = (torch.ops.aten._to_dense.default,)
"""Operations on sparse tensors whose result shares no memory with them."""

RESHAPING = ("resize_", "resize_as_", "set_", "addbmm_")
"""Operations in place whose rules for batches mix examples where the shape changes."""


class UnbatchableError(Exception):
    """The model's code cannot run on all examples at once, each for itself."""


class _Place(int):
    """That of a tensor of the run: a row, a constant, or the result of an operation."""


class _Lent(_Place):
    """Of what the code keeps, for an operation that is not known to leave it as it is: a copy."""


class Tape(TorchDispatchMode):
    """What a function did with its rows: a list of operations of torch, and nothing of Python.

    The function runs once, on made-up rows. All that it took from elsewhere (weights, what its code
    keeps, numbers of Python) is as it was then for all that the tape is played on. Nothing that is
    played gets back to the function: its code never meets a private example.

    >>> rows = torch.zeros(1, 2)
    >>> tape = Tape(lambda x: x.exp() * 2, [rows])
    >>> tape.each(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    tensor([[2.0000, 2.0000],
            [5.4366, 2.0000]])
    """

    def __init__(
        self,
        function: Callable[..., Any],
        rows: list[Tensor],
        check: Callable[[object], None] | None = None,
    ) -> None:
        super().__init__()
        self._check = check
        self._steps: list[tuple[Any, Any, Any, list[_Place], list[_Place]]] = []
        self._fixed: dict[int, Tensor] = {}
        self._seen: list[Tensor] = []  # so that each keeps its identity
        self._places: dict[int, _Place] = {}
        self._memory: tuple[set[int], set[int]] = set(), set()  # of constants, of all others
        self._begun: dict[int, int] = {}  # by place: the memory that a tensor had at first
        self._varying = {_memory_of(row) for row in rows if self._add(row)}  # with the example
        generators = torch.default_generator, global_generator(rows[0].device)
        self._states = {generator: generator.get_state() for generator in generators}
        with self:
            result = function(*rows)
        needed: list[_Place] = []
        self._result = _mapped(partial(self._place, needed), result)
        self._last = self._last_uses({*needed, *self._fixed})
        self._seen, self._places, self._check = [], {}, None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # of the compiler, which has no part in it: asking it takes long

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Carry out an operation, and note it."""
        kwargs = kwargs or {}
        if self._check is not None:
            self._check(func)
        if func in REPLACED:
            with self, torch._C.DisableTorchFunction():
                return REPLACED[func](*args, **kwargs)
        mutable, draws, reads = _facts(func)
        if any(isinstance(one, torch.Generator) for one in (*args, *kwargs.values())):
            raise UnbatchableError("random numbers come from a generator of the model's own")
        met: list[_Place] = []
        place = partial(self._place, met)
        taken, named = _mapped(place, args), {n: _mapped(place, one) for n, one in kwargs.items()}
        given = tensors_in(args, kwargs)
        written = self._written(func, args, kwargs) if mutable else []
        kept = [] if reads else [one for one in given if _memory_of(one) in self._memory[0]]
        if kept:
            lent = partial(_lent, {self._places[id(one)] for one in kept})
            taken, named = _mapped(lent, taken), _mapped(lent, named)
        if draws and any(not torch.equal(g.get_state(), at) for g, at in self._states.items()):
            raise UnbatchableError("the model's code sets the state of a generator")
        before = [_whole(one).clone() for one in kept]
        result = func(*args, **kwargs)
        changed = [
            at for at in zip(kept, before, strict=True) if not same_bits(_whole(at[0]), at[1])
        ]
        for one, bits in changed:
            _whole(one).copy_(bits)
        if changed:
            raise UnbatchableError(f"`{func}` writes into what the model's code keeps")
        if draws:
            self._states = {g: g.get_state() for g in self._states}
        results = tensors_in(result)
        if func not in DENSE and any(_is_packed(one) for one in (*given, *results)):
            raise UnbatchableError(f"`{func}` has tensors that are sparse or nested")
        made = [self._places.get(id(one)) or self._add(one) for one in results]
        varies = draws or any(_memory_of(one) in self._varying for one in given)
        if varies:
            self._varying.update(map(_memory_of, (*results, *written)))
        if made or result is None:  # or an operation that only may fail
            self._steps.append((func, taken, named, met, made))
        elif varies:
            raise UnbatchableError("the model's code looks at values")
        return result

    def _add(self, tensor: Tensor) -> _Place:
        place = self._places[id(tensor)] = _Place(len(self._seen) + 1)
        self._seen.append(tensor)
        self._begun[place] = _memory_of(tensor)
        if _memory_of(tensor) not in self._memory[0]:
            self._memory[1].add(_memory_of(tensor))
        return place

    def _place(self, met: list[_Place], one: Any) -> Any:
        """Where a tensor was met first, noted; one that no operation made is a constant."""
        if not isinstance(one, Tensor):
            return one
        if id(one) not in self._places:
            if _memory_of(one) in self._memory[1]:
                raise UnbatchableError("a tensor was made where it is not seen")
            self._memory[0].add(_memory_of(one))
            self._fixed[self._add(one)] = one
        met.append(self._places[id(one)])
        if self._begun[met[-1]] != _memory_of(one):
            raise UnbatchableError("a tensor was given another one's memory (`.data`)")
        return met[-1]

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """What an operation says that it writes into; never what the model's code keeps."""
        found: list[Tensor] = []
        for number, argument in enumerate(func._schema.arguments):
            info = argument.alias_info
            if info is None or not info.is_write:
                continue
            found += tensors_in(args[number] if number < len(args) else kwargs.get(argument.name))
        if any(_memory_of(one) in self._memory[0] for one in found):
            raise UnbatchableError("the model's code writes into what it keeps")
        return found

    def _last_uses(self, needed: set[int]) -> list[list[int]]:
        """What is not needed any more after each step."""
        dead: list[list[int]] = []
        for *_, met, made in reversed(self._steps):
            dead.append([*{*met, *made} - needed])
            needed.update(met, made)
        return dead[::-1]

    @torch.no_grad()
    def __call__(self, *rows: Tensor) -> Any:
        """The same operations on these rows."""
        values = self._fixed | {n: row.clone() for n, row in enumerate(rows, start=1)}

        def value(one: Any) -> Any:
            if type(one) is _Lent:
                return _copy(values[one])
            return values[one] if type(one) is _Place else one

        for (func, args, kwargs, _, made), dead in zip(self._steps, self._last, strict=True):
            result = func(
                *_mapped(value, args), **{n: _mapped(value, one) for n, one in kwargs.items()}
            )
            values.update(zip(made, tensors_in(result), strict=True))
            if func.overloadpacket.__name__ in UNWRITTEN:
                result.zero_()
            for place in dead:
                del values[place]
        return _mapped(value, self._result)

    @torch.no_grad()
    def each(self, *rows: Tensor) -> Any:
        """For each row by itself; what the run made for one is on the first axis."""
        for func, *_ in self._steps:
            name = func.overloadpacket.__name__
            if name.rstrip("_") not in APART and torch.Tag.pointwise not in func.tags:
                raise UnbatchableError(f"`{name}` is not known to keep examples apart")
        with torch.autocast(rows[0].device.type, enabled=False):
            single = [row.unsqueeze(1) for row in rows]
            found = vmap(self, randomness="different")(*single)
        return _mapped(lambda one: one.squeeze(1), found)


@cache
def _facts(func: Any) -> tuple[bool, bool, bool]:
    """Whether an operation writes, draws random numbers, and is known to write only what it says.

    Allowed are those of torch itself: others may have rules for batches that mix examples.
    """
    if not isinstance(func, OpOverload) or func.namespace not in OWN_OPERATIONS:
        raise UnbatchableError(f"`{func}` is no operation of torch itself")
    if func.overloadpacket.__name__ in RESHAPING:
        raise UnbatchableError(f"`{func}` may change shapes in place")
    reads = func.overloadpacket.__name__.rstrip("_") in READING or func in DENSE
    reads |= torch.Tag.pointwise in func.tags
    return func._schema.is_mutable, torch.Tag.nondeterministic_seeded in func.tags, reads


def _mapped(function: Callable[[Any], Any], thing: Any) -> Any:
    """The function of all that is in these tuples, lists and dicts."""
    if isinstance(thing, dict):
        return {key: _mapped(function, one) for key, one in thing.items()}
    if isinstance(thing, (tuple, list)):
        return type(thing)([_mapped(function, one) for one in thing])
    return function(thing)


def _memory_of(tensor: Tensor) -> int:
    """What tells whether two tensors share memory."""
    return id(tensor) if _is_packed(tensor) else int(tensor.untyped_storage()._cdata)


def _is_packed(tensor: Tensor) -> bool:
    """Whether it is made of tensors, whose memory can be had without a trace."""
    return tensor.layout is not torch.strided or tensor.is_nested


def _whole(tensor: Tensor) -> Tensor:
    """All of its memory."""
    if _is_packed(tensor):
        return tensor
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)


def _copy(tensor: Tensor) -> Tensor:
    """A copy with the same place in memory of the same size."""
    return _whole(tensor).clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _lent(kept: set[int], one: Any) -> Any:
    return _Lent(one) if type(one) is _Place and one in kept else one

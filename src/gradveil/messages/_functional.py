"""A user's module as a pure function of its parameters and inputs, one tensor to one tensor."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from gradveil._checks import (
    REAL,
    WHOLE,
    WrongType,
    WrongValue,
    check_callable,
    check_inputs,
    check_kind,
    check_seed,
    first_line,
    is_out_of_memory,
)
from gradveil._tensors import Tensors

LossFunction = Callable[[Any, Any], Tensor]


class FunctionalLoss:
    """The loss as a pure function (parameters, inputs, targets) of a module that stays untouched.

    Buffers are cloned at each evaluation, so BatchNorm in training mode uses the statistics of
    the batch and leaves the running ones alone. What draws random numbers (dropout, or a loss
    that does) draws the same ones at every evaluation, from `seed`: the message is one function,
    and the global generator keeps its state.
    """

    may_use_weights = True
    """Whether the loss may have a term of the weights themselves; it is kept (`penalty_of`)."""

    seed: int | None
    """`None`: what the model draws comes from the global generator as it is (`secluded`)."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction, seed: int) -> None:
        check_model(model)  # an unusable model is an error now, not at the first call
        check_callable(loss_fn, "loss_fn", "Use for example torch.nn.functional.cross_entropy.")
        check_seed(seed)
        self.model, self.loss_fn, self.seed = model, loss_fn, seed
        self._moved: Tensors | None = None
        self._dtype: torch.dtype | None = None

    @property
    def parameters(self) -> Tensors:
        """The trainable parameters as they are now, or those that `at` put in their place."""
        if self._moved is not None:
            return self._moved
        return self._cast({name: p.detach() for name, p in leaves(self.model).items()})

    def at(self, parameters: Tensors) -> "FunctionalLoss":
        """The same loss with other parameters for its own."""
        moved = copy(self)
        moved._moved = parameters
        return moved

    def double(self) -> "FunctionalLoss":
        """The same loss in float64."""
        wide = copy(self)
        wide._dtype = torch.float64
        wide._moved = self._moved and wide._cast(self._moved)
        return wide

    def secluded(self, seed: int | None = None) -> "FunctionalLoss":
        """The same loss for runs inside of `apart`; of a compiled model without its compiler."""
        alone = copy(self)
        alone.model = _uncompiled(self.model)
        alone.seed = seed
        return alone

    def outputs(self, parameters: Tensors, inputs: Tensor) -> Any:
        """What the model returns with these parameters."""
        return self.outputs_and_draws(parameters, inputs)[0]

    def outputs_and_draws(self, parameters: Tensors, inputs: Tensor) -> tuple[Any, bool]:
        """What the model returns, and whether it drew random numbers for that."""
        buffers = self._cast({name: b.clone() for name, b in self.model.named_buffers()})
        if self._dtype is not None:
            frozen = {n: p for n, p in self.model.named_parameters() if not p.requires_grad}
            buffers |= self._cast(frozen)
        with _seeded(self.seed, inputs.device) as generator, _plain_attention():
            start = generator.get_state()
            outputs = self._call({**parameters, **buffers}, inputs)
            return outputs, not torch.equal(start, generator.get_state())

    def _call(self, tensors: Tensors, inputs: Tensor) -> Any:
        """The model with these tensors in place of its own."""
        return call_with(self.model, tensors, _own(inputs))

    @property
    def is_own(self) -> bool:
        """Whether it is the model's loss at its own weights, in their own precision."""
        return self._moved is None and self._dtype is None

    @property
    def is_plain(self) -> bool:
        """Whether the module itself can be called: at its own weights, without buffers to keep."""
        has_buffers = next(self.model.buffers(), None) is not None
        return self.is_own and not has_buffers

    def of_model(self, inputs: Tensor, targets: Any) -> Tensor:
        """The same loss by a call of the module, which costs less than one as a function."""
        with _seeded(self.seed, inputs.device), _plain_attention():
            outputs = self.model(_own(inputs))
        return self.loss_of_outputs(outputs, targets)

    def _cast(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """The floating-point ones in the precision of the loss, where it has one of its own."""
        if self._dtype is None:
            return dict(tensors)
        return {n: t.to(self._dtype) if t.is_floating_point() else t for n, t in tensors.items()}

    def __call__(self, parameters: Tensors, inputs: Tensor, targets: Any) -> Tensor:
        """The scalar loss with these parameters."""
        return self.loss_of_outputs(self.outputs(parameters, inputs), targets)

    def loss_of_outputs(self, outputs: Any, targets: Any) -> Tensor:
        """The scalar loss of what the model returned."""
        device = outputs.device if isinstance(outputs, Tensor) else torch.device("cpu")
        with _seeded(self.seed, device):
            loss = self.loss_fn(outputs, targets)
        if not isinstance(loss, Tensor) or loss.dim() > 0 or not loss.is_floating_point():
            found = f"a result of type {type(loss).__name__}"
            if isinstance(loss, Tensor):
                found = f"a result of shape {tuple(loss.shape)}, {loss.dtype}"
            advice = "Use a loss with reduction 'mean' or 'sum'."
            raise WrongValue("loss_fn", "return one number (a 0-d tensor)", found, advice)
        return loss


def call_with(model: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor) -> Any:
    """The model's outputs with these tensors in place of its own, under every name that they have.

    `functional_call` can find these names itself, but it then replaces what a module that is used
    under two names holds twice, and afterwards puts back what it found the second time: the
    replacement.
    """
    owned: dict[Tensor, list[str]] = {}
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                owned.setdefault(tensor, []).append(f"{prefix}.{name}" if prefix else name)
    given = [places for places in owned.values() if places[0] in tensors]
    everywhere = {place: tensors[places[0]] for places in given for place in places}
    return functional_call(model, everywhere, (inputs,), tie_weights=False)


def _own(inputs: Tensor) -> Tensor:
    """A copy that the model may change in place; of a leaf, autograd itself forbids that."""
    return inputs if inputs.is_leaf and inputs.requires_grad else inputs.clone()


@contextmanager
def apart(*roots: Any) -> Iterator[None]:
    """Let modules hold copies of all that they hold: weights, buffers, attributes.

    Whatever its code writes inside, even in hooks of the backward pass, the user's own is there
    again afterwards, and what it stores of one run is not there in the next.
    """
    with one_thread():
        modules = (m for root in roots if isinstance(root, nn.Module) for m in root.modules())
        before = [(module, vars(module).copy()) for module in dict.fromkeys(modules)]
        kept: dict[int, Any] = {id(module): module for module, _ in before}
        copies = [
            {
                name: _copied(value, f"{type(module).__name__}.{name}", kept)
                for name, value in own.items()
            }
            for module, own in before
        ]
        try:
            for (module, _), own in zip(before, copies, strict=True):
                _exchange(module, own | {"_compiled_call_impl": None})
            yield
        finally:
            for module, own in before:
                _exchange(module, own)


_lock = threading.RLock()


def one_thread() -> threading.RLock:  # type: ignore[valid-type]
    """Held while modules hold copies, and generators states, that are not the user's own."""
    return _lock


def _after_fork() -> None:
    """Another thread of the parent may hold it, and is not here to give it back."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _exchange(module: nn.Module, contents: dict[str, Any]) -> None:
    vars(module).clear()
    vars(module).update(contents)


def _copied(value: Any, name: str, kept: dict[int, Any]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, *_LOCKS)):
        return value
    if isinstance(value, dict) and not value:
        return type(value)()
    if isinstance(value, Tensor) and not value.is_leaf:  # a result of an earlier call
        return kept.setdefault(id(value), value.detach().clone())
    try:
        return deepcopy(value, kept)
    except Exception as error:
        scripted = name.startswith(torch.jit.RecursiveScriptModule.__name__)
        raise WrongType(
            "model",
            "hold what can be copied, so that nothing is written into yours",
            f"that `copy.deepcopy` of `{name}` fails with `{first_line(error)}`",
            "Pass the original module, not a scripted one."
            if scripted
            else "Keep it out of the module.",
        ) from error


_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def _uncompiled(model: nn.Module) -> nn.Module:
    """A module without its compiler, so that transforms can look into it; under the same names."""
    compiled = getattr(model, "_orig_mod", None)
    if not isinstance(compiled, nn.Module):
        return model
    plain = nn.Sequential(OrderedDict(_orig_mod=compiled))
    plain.training = compiled.training
    return plain


@contextmanager
def unwritten(model: nn.Module) -> Iterator[None]:
    """Require that weights and buffers are the same, bit by bit, inside; put back what is not."""
    held = dict([*model.named_parameters(), *model.named_buffers()])
    before = {name: tensor.detach().clone() for name, tensor in held.items()}
    try:
        yield
    finally:
        written = [name for name, tensor in held.items() if not same_bits(tensor, before[name])]
        for name in written:
            held[name].data = before[name]
    if written:
        raise WrongValue(
            "model",
            "leave its weights as they are while a message is computed: what is written into them"
            " would tell of the private batch",
            f"that `{written[0]}` was changed in place",
            "Do that after the optimizer's step.",
        )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Also where both are NaN; of tensors in other layouts, whether they have the same numbers."""
    if a.is_meta or a.shape != b.shape:
        return a.is_meta and a.shape == b.shape
    if a.is_nested or a.layout is not torch.strided:
        a, b = ((t.to_padded_tensor(0.0) if t.is_nested else t.to_dense()) for t in (a, b))
    if torch.equal(a, b):
        return True
    bits = [t.resolve_conj().resolve_neg().contiguous().reshape(-1) for t in (a, b)]
    return torch.equal(*(t.view(torch.uint8) for t in bits))


def is_transformed(*tensors: Tensor) -> bool:
    """Whether autograd must not be called: a transform of `torch.func` or forward mode is on.

    In a transform, torch refuses `requires_grad_`; in forward mode, some tensor has a tangent.
    """
    try:
        torch.empty(0).requires_grad_()
    except RuntimeError:
        return True
    return any(unpack_dual(tensor).tangent is not None for tensor in tensors)


def leaves(model: nn.Module) -> Tensors:
    """The trainable parameters themselves, each once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def trainable_parameters(model: nn.Module) -> Tensors:
    """The parameters that enter the message: each once, frozen ones left out."""
    check_model(model)
    return {name: p.detach() for name, p in leaves(model).items()}


def derivative(value: Tensor, at: Tensors, *, create_graph: bool = False) -> Tensors | None:
    """∇ value by plain autograd, 0 for what is not used; `None` where autograd recorded nothing.

    All rows are there: `nn.Embedding(sparse=True)` itself gives those of its tokens only.
    """
    if not value.requires_grad:
        return None
    found = torch.autograd.grad(
        value, [*at.values()], create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
    return {n: g.to_dense() if g.is_sparse else g for n, g in zip(at, found, strict=True)}


def each_row(function: Callable[..., Any], *rows: Tensor) -> Any:
    """`function(*row)` for each row, stacked; one by one where torch cannot batch it."""
    if len(rows[0]) > 1:  # one row spares the vmap level, and layers that vmap does not know
        try:
            return vmap(function, randomness="same")(*rows)
        except Exception as error:
            if is_out_of_memory(error):
                raise
    results = [function(*row) for row in zip(*rows, strict=True)]
    return tree_map(lambda *found: torch.stack(found), *results)


def check_model(model: nn.Module) -> None:
    """Require a module with something to train: weights that hold numbers, and are only read."""
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise WrongType("model", "be a torch.nn.Module", kind)
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        expected = "be the module itself: messages are computed on one device"
        raise WrongType("model", expected, kind, "Pass `model.module`.")
    if isinstance(model, torch.jit.ScriptModule):
        expected = "be a module in Python, whose weights can be replaced"
        raise WrongType("model", expected, f"a scripted one ({kind})", "Pass the original module.")
    for name, module in model.named_modules():
        if getattr(module, "max_norm", None) is not None:
            raise WrongValue(
                "model",
                "not write into its weights when it is called",
                f"the layer `{name}` ({type(module).__name__}, max_norm={module.max_norm}), which"
                " rescales the rows of the tokens it reads, and so tells which these are",
                "Leave max_norm out, and limit the rows after the optimizer's step.",
            )
    for name, weight in model.named_parameters():
        if isinstance(weight, nn.parameter.UninitializedParameter):
            advice = "Call the model on an example first."
            found = f"the lazy weight `{name}`"
            raise WrongValue("model", "have weights of known shapes", found, advice)
        if weight.requires_grad and (weight.dtype not in REAL or weight.is_meta):
            raise WrongType(
                "model",
                "have trainable weights of float32 or float64, on a device of this machine",
                f"{weight.dtype} on {weight.device} for `{name}`",
                "Convert it with `model.float()`; under autocast weights stay float32.",
            )
    if not leaves(model):
        expected = "have at least one parameter with `requires_grad=True`"
        raise WrongValue("model", expected, "none", "Unfreeze a layer, or add one.")


def check_match(inputs: Tensor, targets: Any, *, tokens: bool = False) -> None:
    """Require a batch with one example for each target; NaN is not looked for here."""
    kinds = WHOLE if tokens else REAL
    usable = isinstance(inputs, Tensor) and inputs.dtype in kinds and inputs.numel() > 0
    if not usable or inputs.is_meta or inputs.layout is not torch.strided:
        check_inputs(inputs, tokens=tokens)
    if isinstance(targets, Tensor) and targets.shape[:1] != inputs.shape[:1]:
        shapes = f"inputs.shape = {tuple(inputs.shape)}", f"targets.shape = {tuple(targets.shape)}"
        found = " and ".join(f"`{shape}`" for shape in shapes)
        raise WrongValue("inputs", "have one example for each of the `targets`", found)


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[torch.Generator]:
    """The device's global generator, from `seed` for now and as it was afterwards."""
    generator = global_generator(device)
    if seed is None:
        yield generator
        return
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield generator
    finally:
        generator.set_state(before)


def global_generator(device: torch.device) -> torch.Generator:
    """What the operations of torch draw from on this device."""
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention by matrix products: the fused kernels have no second derivatives."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


class AdaptedModel(nn.Module):
    """A model of which one output is used, or which takes its inputs by name.

    For models that return a dict, a tuple or a `ModelOutput` of transformers, and for those that
    take embeddings as `inputs_embeds`. Weights are shared with the model, and named `model.*`.

    Args:
        model: The model; it is not modified.
        output: The key, the name or the number of the output; `None`: it returns one tensor.
        input: The name of the argument that takes the inputs; `None`: the first one.

    >>> class Two(nn.Linear):
    ...     def forward(self, inputs):
    ...         return {"logits": super().forward(inputs), "inputs": inputs}
    >>> AdaptedModel(Two(3, 2), output="logits")(torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """

    def __init__(
        self, model: nn.Module, output: str | int | None = None, input: str | None = None
    ) -> None:
        super().__init__()
        check_kind(model, "model", nn.Module)
        if output is not None:
            check_kind(output, "output", (str, int), "Use for example 'logits', or 0.")
        if input is not None:
            check_kind(input, "input", str, "Use for example 'inputs_embeds'.")
        self.model, self.output, self.input = model, output, input

    def forward(self, inputs: Tensor) -> Any:
        """The chosen output."""
        outputs = self.model(inputs) if self.input is None else self.model(**{self.input: inputs})
        return outputs if self.output is None else _chosen(outputs, self.output)


def described_outputs(outputs: Any) -> str:
    """What a model returned, with the keys under which its parts are found."""
    if isinstance(outputs, Tensor):
        return f"one tensor of shape {tuple(outputs.shape)}"
    parts = [f"{key!r} {_shape(part)}" for key, part in _parts(outputs).items()]
    return f"{type(outputs).__name__}{' with ' if parts else ''}{', '.join(parts)}"


def _chosen(outputs: Any, key: str | int) -> Any:
    parts = _parts(outputs)
    values = list(parts.values())
    if key in parts:
        return parts[key]
    if isinstance(key, str) and key in getattr(outputs, "_fields", ()):  # a NamedTuple
        return getattr(outputs, key)
    if isinstance(key, int) and not isinstance(key, bool) and -len(values) <= key < len(values):
        return values[key]
    found = f"{key!r}, and that it returns {described_outputs(outputs)}"
    raise WrongValue("output", "name an output of the model", found)


def _parts(outputs: Any) -> dict[Any, Any]:
    if isinstance(outputs, Mapping):
        return dict(outputs)
    return dict(enumerate(outputs)) if isinstance(outputs, (tuple, list)) else {}


def _shape(part: Any) -> str:
    return str(tuple(part.shape)) if isinstance(part, Tensor) else f"({type(part).__name__})"

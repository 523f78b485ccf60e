"""Comparisons of messages, and gradients made without the package."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.zoo import Case, Loss

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}
"""Relative to the largest entry of a tensor. The operations of a small model lose two to four
digits of the 16 that float64 has, and of the 7 that float32 has."""


def assert_same(
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: float | None = None,
    noise: float | None = None,
) -> None:
    """The same names, shapes and numbers, up to rounding; says which entries are not.

    An entry that is 0 in exact arithmetic, such as the gradient of a bias before BatchNorm, is
    left with rounding errors of the others' size times epsilon: `noise`, relative to the largest
    entry of all tensors (its square for squares).
    """
    assert found.keys() == expected.keys()
    dtype = next(iter(expected.values())).dtype
    tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
    noise = 500 * torch.finfo(dtype).eps if noise is None else noise
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        assert found[name].dtype == value.dtype, name
        limit = tolerance * float(value.abs().max()) + noise * largest
        wrong = ((found[name] - value).abs() > limit) | ~torch.isfinite(found[name])
        assert not bool(wrong.any()), (
            f"{int(wrong.sum())} of {wrong.numel()} entries of {name} differ by more than"
            f" {limit:.1e}: found {found[name][wrong][:5]}, expected {value[wrong][:5]}"
        )


def assert_same_bytes(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """The global generator from that seed, put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def backward_gradient(
    model: nn.Module, loss_fn: Loss, inputs: Tensor, targets: object, seed: int = 0
) -> dict[str, Tensor]:
    """What `loss.backward()` leaves in `.grad` of a copy of the model."""
    model = copy.deepcopy(model)
    model.zero_grad()
    with seeded(seed):
        loss_fn(model(inputs), targets).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def functional_gradient(case: Case, seed: int = 0) -> Callable[[Tensor], dict[str, Tensor]]:
    """The gradient as a function of the inputs that `torch.func` can differentiate."""
    model, loss_fn, targets = case.model(), case.loss(), case.targets()
    parameters = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}

    def loss(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with seeded(seed), sdpa_kernel(SDPBackend.MATH):
            return loss_fn(functional_call(model, {**parameters, **buffers}, (inputs,)), targets)

    return lambda inputs: grad(loss)(parameters, inputs)


@contextmanager
def assert_untouched(model: nn.Module) -> Iterator[None]:
    """Nothing of the module changes: not a number, not a flag, not a hook, not an identity."""
    before = _state(model)
    yield
    after = _state(model)
    assert before.keys() == after.keys()
    for key, value in before.items():
        same = torch.equal(value, after[key]) if isinstance(value, Tensor) else value == after[key]
        assert same, f"{key} was {value} and is {after[key]}"


def _state(model: nn.Module) -> dict[str, object]:
    state: dict[str, object] = {}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        grad_now = tensor.grad
        state[f"{name} values"] = tensor.detach().clone()
        state[f"{name} identity"] = (id(tensor), tensor.data_ptr(), tensor._version)
        state[f"{name} flags"] = (tensor.requires_grad, tensor.dtype, grad_now is None)
        state[f"{name} grad"] = None if grad_now is None else grad_now.detach().clone()
    for name, module in model.named_modules():
        state[f"{name} mode"] = module.training
        state[f"{name} hooks"] = [
            len(getattr(module, kind))
            for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
        ]
        state[f"{name} attributes"] = sorted(vars(module))
    return state

"""Every check of what a user hands in: what was expected, what was found, what to do."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class NonFiniteError(ValueError):
    """A NaN or an infinity where only finite numbers make sense."""


def check_inputs(inputs: Tensor, name: str = "inputs") -> None:
    """Require a non-empty batch of finite floating-point numbers."""
    if not isinstance(inputs, Tensor):
        raise TypeError(
            f"Parameter `{name}` should be a torch.Tensor. Found {type(inputs).__name__}."
            " Convert it with torch.as_tensor."
        )
    if not inputs.is_floating_point():
        raise TypeError(
            f"Parameter `{name}` should be floating point: the defenses differentiate with respect"
            f" to it. Found `{name}.dtype = {inputs.dtype}`. Convert it with `.float()`, or, for"
            " token ids, pass the embeddings instead."
        )
    if inputs.dim() == 0 or inputs.numel() == 0:
        raise ValueError(
            f"Parameter `{name}` should be a non-empty batch of shape (examples, ...). Found"
            f" `{name}.shape = {tuple(inputs.shape)}`. Skip empty batches."
        )
    if not all_finite(inputs):
        raise NonFiniteError(
            f"Parameter `{name}` should be finite. Found {_count_bad(inputs)} of"
            f" {inputs.numel()} entries NaN or infinite. Clean the data first."
        )


def check_finite(values: Mapping[str, Tensor], what: str = "values") -> None:
    """Require finite tensors; a NaN or an infinity must never be sent."""
    for name, value in values.items():
        if not all_finite(value):
            raise NonFiniteError(
                f"`{what}` should be finite. Found {_count_bad(value)} of {value.numel()} entries"
                f" NaN or infinite in `{name}`. Nothing was sent; lower the learning rate, check"
                " the loss, or skip this batch."
            )


def check_structure(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], name: str, reference: str
) -> None:
    """Require the same names and shapes as `expected`."""
    if found.keys() != expected.keys():
        missing = sorted(expected.keys() - found.keys())
        unknown = sorted(found.keys() - expected.keys())
        raise ValueError(
            f"Parameter `{name}` should have the names of `{reference}`. Found missing names"
            f" {missing} and unknown names {unknown}. Make both from the same message."
        )
    for key, value in found.items():
        if value.shape != expected[key].shape:
            raise ValueError(
                f"Parameter `{name}` should have the shapes of `{reference}`. Found shape"
                f" {tuple(value.shape)} for `{key}` instead of {tuple(expected[key].shape)}."
                " Make both from the same message."
            )


def check_number(value: float, name: str) -> None:
    """Require a number; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"Parameter `{name}` should be a number. Found {type(value).__name__} ({value!r})."
        )


def check_not_negative(value: float, name: str) -> None:
    """Require a finite number that is at least 0."""
    check_number(value, name)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"Parameter `{name}` should be a finite number of at least 0. Found `{name} = {value}`."
        )


def check_positive(value: float, name: str, *, finite: bool = True) -> None:
    """Require a number above 0."""
    check_number(value, name)
    if not value > 0 or (finite and not math.isfinite(value)):
        kind = "a finite" if finite else "a"
        raise ValueError(
            f"Parameter `{name}` should be {kind} number above 0. Found `{name} = {value}`."
        )


def check_ratio(value: float, name: str) -> None:
    """Require a number in [0, 1]."""
    check_number(value, name)
    if not 0 <= value <= 1:
        raise ValueError(
            f"Parameter `{name}` should be in [0, 1]. Found `{name} = {value}`."
            " For percentages, divide by 100."
        )


def check_count(value: int, name: str) -> None:
    """Require an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"Parameter `{name}` should be an integer of at least 1. Found `{name} = {value!r}`."
        )


def check_choice(value: str, name: str, choices: tuple[str, ...]) -> None:
    """Require one of the listed words."""
    if value not in choices:
        raise ValueError(
            f"Parameter `{name}` should be one of {list(choices)}. Found `{name} = {value!r}`."
        )


def check_exactly_one(**options: object) -> None:
    """Require that exactly one of the named options is given."""
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        raise ValueError(
            f"Exactly one of the parameters {[*options]} should be given. Found {given or 'none'}."
        )


def all_finite(value: Tensor) -> bool:
    """Whether all entries are finite; one pass where the sum is (the usual case)."""
    return math.isfinite(value.sum().item()) or bool(torch.isfinite(value).all())


def _count_bad(value: Tensor) -> int:
    return int((~torch.isfinite(value)).sum())


def device_of(name: str) -> torch.device:
    """The device of this name, if this machine has it."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"Parameter `device` should name a device of this machine, as 'cpu' or 'cuda:0'. Found"
            f" {name!r}: {str(error).splitlines()[0]}"
        ) from None
    return device

"""Checks of arguments; errors say what was expected, what was found and what to do."""

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

REAL, WHOLE = (torch.float32, torch.float64), (torch.int64, torch.int32)
"""The numbers that messages are made of (squares of float16 under- and overflow), and of ids."""

SEEDS = 2**64
"""Seeds are below this, as torch wants them."""

LARGEST = 1e18
"""The largest amount whose square still is a float32."""

MOST_CLASSES = 2**20
"""Labels above this are no numbers of classes: a model would need an output for each."""

Task = Literal["classification", "numbers", "labels"]
"""What targets are: one class label for each example, numbers (regression, several yes-or-no
labels), or several class labels for each example (segmentation, sequences)."""

TASKS: tuple[Task, ...] = ("classification", "numbers", "labels")


class WrongArgument(Exception):
    """A wrong argument as a value; its text is made from the parts, here alone.

    Args:
        argument: Its name, the option that was typed, or what is wrong in words ("File `x.npz`").
        expected: What it should be, behind "should", as "be a number".
        found: What it is instead, in a few words.
        advice: What to do, as a sentence.
        assigned: Whether `found` is the value itself, to be shown as `argument = found`.

    >>> error = WrongValue("lr", "be above 0", "-1", assigned=True)
    >>> print(error)
    Parameter `lr` should be above 0. Found `lr = -1`.
    >>> print(error.renamed("--lr"))
    Option `--lr` should be above 0. Found `--lr = -1`.
    """

    def __init__(
        self, argument: str, expected: str, found: str, advice: str = "", assigned: bool = False
    ) -> None:
        super().__init__(argument, expected, found, advice, assigned)
        self.argument, self.expected, self.found = argument, expected, found
        self.advice, self.assigned = advice, assigned

    def __str__(self) -> str:
        found = f"`{self.argument} = {self.found}`" if self.assigned else self.found
        return f"{self.subject} should {self.expected}. Found {found}. {self.advice}".rstrip()

    @property
    def subject(self) -> str:
        """The argument as a sentence begins with it."""
        kind = "Option" if self.argument.startswith("--") else "Parameter"
        return self.argument if " " in self.argument else f"{kind} `{self.argument}`"

    def renamed(self, argument: str) -> "WrongArgument":
        """The same of an argument that has another name for who gave it."""
        return type(self)(argument, self.expected, self.found, self.advice, self.assigned)

    def described(self, words: str) -> "WrongArgument":
        """The same of an argument that words tell from others of its name."""
        found = f"`{self.argument} = {self.found}`" if self.assigned else self.found
        return type(self)(words, self.expected, found, self.advice)


class WrongValue(WrongArgument, ValueError):
    """An argument of the right type with a value that makes no sense."""


class NonFiniteError(WrongValue):
    """A NaN or an infinity where only finite numbers make sense."""


class WrongType(WrongArgument, TypeError):
    """An argument of another type."""


def check_tensor(value: object, name: str) -> None:
    """Require a dense tensor with numbers in it."""
    if not isinstance(value, Tensor):
        advice = "Convert it with torch.as_tensor."
        raise WrongType(name, "be a torch.Tensor", type(value).__name__, advice)
    if value.layout is not torch.strided or value.is_nested or value.is_meta:
        kind = "device meta, without numbers" if value.is_meta else f"layout {value.layout}"
        advice = "Convert it with `.to_dense()`, or move it to a device of this machine."
        raise WrongValue(name, "be a dense tensor", f"one of {kind}", advice)


def check_inputs(inputs: Tensor, name: str = "inputs", *, tokens: bool = False) -> None:
    """Require a non-empty batch of finite floating-point numbers, or of the ids of tokens."""
    check_tensor(inputs, name)
    if inputs.dtype not in (WHOLE if tokens else REAL):
        wanted, advice = "the ids of tokens, int64 or int32", "`.long()`"
        if not tokens:
            wanted = "floating point, float32 or float64: defenses differentiate with respect to it"
            advice = "`.float()`, or, for token ids, `TokenGradient(model, loss_fn, targets)`"
        found = f"`{name}.dtype = {inputs.dtype}`"
        raise WrongType(name, f"be {wanted}", found, f"Use {advice}.")
    if inputs.dim() == 0 or inputs.numel() == 0:
        found = f"`{name}.shape = {tuple(inputs.shape)}`"
        expected = "be a non-empty batch of shape (examples, ...)"
        raise WrongValue(name, expected, found, "Skip empty batches.")
    if not all_finite(inputs):
        found = f"{_count_bad(inputs)} of {inputs.numel()} entries NaN or infinite"
        raise NonFiniteError(name, "be finite", found, "Clean the data first.")


def check_values(values: object, name: str = "values") -> None:
    """Require tensors of real numbers by parameter name; NaN is not looked for here."""
    if not isinstance(values, Mapping) or not values:
        kind = WrongValue if isinstance(values, Mapping) else WrongType
        expected = "hold tensors by parameter name, at least one"
        raise kind(name, expected, _typed(values), "Give a dict, as a message returns it.")
    for key, value in values.items():
        if not isinstance(value, Tensor) or value.dtype not in REAL or value.is_meta:
            shown = f"{value.dtype} on {value.device}" if isinstance(value, Tensor) else ""
            found = f"{shown or type(value).__name__} for `{key}`"
            advice = "Convert it with `torch.as_tensor(value).float()`."
            raise WrongType(name, "hold tensors of float32 or float64", found, advice)


def check_finite(values: Mapping[str, Tensor], what: str = "values") -> None:
    """Require finite tensors; a NaN or an infinity must never be sent."""
    for name, value in values.items():
        if not all_finite(value):
            found = f"{_count_bad(value)} of {value.numel()} entries NaN or infinite in `{name}`"
            advice = "lower the learning rate, check the loss, or skip this batch."
            advice = f"Nothing was sent; {advice}"
            raise NonFiniteError(f"Value `{what}`", "be finite", found, advice)


def check_structure(
    given: Mapping[str, Tensor], expected: Mapping[str, Tensor], name: str, reference: str
) -> None:
    """Require the same names and shapes as `expected`."""
    advice = "Make both from the same message."
    if given.keys() != expected.keys():
        missing = sorted(expected.keys() - given.keys())
        unknown = sorted(given.keys() - expected.keys())
        found = f"missing names {missing} and unknown names {unknown}"
        raise WrongValue(name, f"have the names of `{reference}`", found, advice)
    for key, value in given.items():
        if value.shape != expected[key].shape:
            wanted = tuple(expected[key].shape)
            found = f"shape {tuple(value.shape)} for `{key}` instead of {wanted}"
            raise WrongValue(name, f"have the shapes of `{reference}`", found, advice)


def task_of(targets: Tensor) -> Task:
    """The task that targets are of."""
    if targets.is_floating_point():
        return "numbers"
    return "classification" if targets.dim() == 1 else "labels"


def check_targets(targets: Any, count: int, name: str = "targets") -> Task:
    """Require class labels, several labels or numbers, one row for each input; returns the task.

    Several labels for one example may be any integers: losses ignore some, as -100.
    """
    known = isinstance(targets, Tensor) and targets.dtype in (torch.int64, *REAL)
    if not known or targets.shape[:1] != (count,) or targets.numel() == 0:
        kinds = "one class label (int64), several, or numbers (float32)"
        advice = "Convert labels with `torch.as_tensor(targets).long()`, numbers with `.float()`."
        expected = f"hold {kinds} for each of the {count} inputs"
        found = type(targets).__name__
        if isinstance(targets, Tensor):
            found = f"{targets.dtype} {tuple(targets.shape)}"
        raise WrongValue(name, expected, found, advice)
    if targets.is_floating_point() and not all_finite(targets):
        advice = "Leave out examples without a target."
        raise WrongValue(name, "hold finite numbers", "NaN or infinity", advice)
    return task_of(targets)


def check_examples(
    batch: Any, name: str = "batch", num_classes: int | None = None, *, tokens: bool = False
) -> tuple[Tensor, Tensor]:
    """Require a pair of inputs and targets of any task, one for each input; returns the pair."""
    inputs, targets = check_pair(batch, name)
    check_inputs(inputs, "inputs", tokens=tokens)
    if check_targets(targets, len(inputs)) == "classification":
        check_labels(targets, "targets", num_classes)
    return inputs, targets


def check_pair(pair: Any, name: str) -> tuple[Any, Any]:
    """Require two things; returns them."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        length = f" of {len(pair)}" if isinstance(pair, (tuple, list)) else ""
        expected = "be a pair, as (inputs, targets) or (low, high)"
        raise WrongType(name, expected, f"{type(pair).__name__}{length}")
    return pair[0], pair[1]


def check_labels(
    labels: Any, name: str, num_classes: int | None = None, why: str = "there are {} classes"
) -> None:
    """Require integers of at least 0, and below the number of classes where that is known."""
    check_tensor(labels, name)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool:
        found = f"`{name}.dtype = {labels.dtype}`"
        raise WrongType(name, "hold integers", found, "Convert it with `.long()`.")
    if labels.numel() == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    found = f"labels from {low} to {high}"
    if low < 0:
        advice = "Leave out examples without a label (-100, as losses ignore it)."
        raise WrongValue(name, "hold numbers of at least 0", found, advice)
    if num_classes is not None and high >= num_classes:
        expected = f"hold labels from 0 to {num_classes - 1}: {why.format(num_classes)}"
        advice = f"Number the classes from 0, or use a model with at least {high + 1} outputs."
        raise WrongValue(name, expected, found, advice)


def check_classes(count: Any, name: str = "num_classes") -> None:
    """Require a number of classes, for each of which a model can have an output."""
    check_count(count, name)
    if count > MOST_CLASSES:
        advice = "Number the classes from 0."
        raise WrongValue(name, f"be at most {MOST_CLASSES}", _short(count), advice)


def check_shape(shape: Any, name: str) -> None:
    """Require the sizes of one example, each at least 1."""
    sizes = isinstance(shape, Sequence) and not isinstance(shape, str)
    whole = sizes and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape)
    if not whole:
        advice = "Give for example (1, 28, 28)."
        raise WrongValue(name, "hold integers of at least 1", repr(shape), advice, True)


def check_range(low: Any, high: Any) -> None:
    """Require a range that is not reversed, or none."""
    for name, end in (("low", low), ("high", high)):
        if end is not None:
            check_tensor(end, name)
            if bool(end.isnan().any()):
                advice = "Use `None` where the range is not known."
                raise WrongValue(name, "hold numbers", "NaN", advice)
    if low is not None and high is not None and bool((low > high).any()):
        found = f"`low = {float(low.max()):g}` and `high = {float(high.min()):g}`"
        raise WrongValue("low", "not be above `high`", found, "Exchange them.")


def check_number(value: float, name: str) -> None:
    """Require a number that a float can hold; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongType(name, "be a number", _typed(value))
    if isinstance(value, int) and abs(value) > 10**300:
        found = f"an integer of {value.bit_length()} bits"
        raise WrongValue(name, "be a number below 1e300", found)


def check_not_negative(value: float, name: str) -> None:
    """Require a finite number that is at least 0."""
    check_number(value, name)
    if not (math.isfinite(value) and value >= 0):
        raise WrongValue(name, "be a finite number of at least 0", str(value), assigned=True)


def check_at_most(value: float, name: str, most: float = LARGEST) -> None:
    """Require a number that is not above a limit, here that of squares in float32."""
    check_number(value, name)
    if value > most:
        expected = f"be at most {most:g}: its square has to be a float32"
        raise WrongValue(name, expected, str(value), "Rescale the loss or the data.", True)


def check_positive(value: float, name: str, *, finite: bool = True) -> None:
    """Require a number above 0."""
    check_number(value, name)
    if not value > 0 or (finite and not math.isfinite(value)):
        kind = "a finite" if finite else "a"
        raise WrongValue(name, f"be {kind} number above 0", str(value), assigned=True)


def check_ratio(value: float, name: str) -> None:
    """Require a number in [0, 1]."""
    check_number(value, name)
    if not 0 <= value <= 1:
        raise WrongValue(name, "be in [0, 1]", str(value), "For percentages, divide by 100.", True)


def check_count(value: int, name: str, least: int = 1) -> None:
    """Require an integer of at least 1, or of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise WrongValue(name, f"be an integer of at least {least}", _short(value), assigned=True)


def check_seed(value: int, name: str = "seed") -> None:
    """Require an integer that torch takes for a seed: at least 0, and below 2⁶⁴."""
    check_count(value, name, least=0)
    if value >= SEEDS:
        advice = "Choose a smaller one."
        raise WrongValue(name, "be an integer below 2**64", _short(value), advice, True)


def check_flag(value: bool, name: str) -> None:
    """Require True or False."""
    if not isinstance(value, bool):
        raise WrongType(name, "be True or False", _short(value), assigned=True)


def check_choice(value: str, name: str, choices: Collection[str], otherwise: str = "") -> None:
    """Require one of the listed words; `otherwise` tells what else there is."""
    if not isinstance(value, str) or value not in choices:
        expected, advice = f"be one of {list(choices)}{otherwise}", suggestion(str(value), choices)
        raise WrongValue(name, expected, _short(value), advice.strip(), assigned=True)


def suggestion(name: str, known: Collection[str]) -> str:
    """``" Did you mean `x`?"`` for the name of ``known`` nearest to ``name``, or nothing."""
    nearest = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f" Did you mean `{nearest[0]}`?" if nearest else ""


def check_kind(value: object, name: str, kind: type | tuple[type, ...], advice: str = "") -> None:
    """Require an instance of a class; a class itself is none."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(each.__name__ for each in kinds)
        raise WrongType(name, f"be of type {wanted}", _typed(value), advice)


def check_callable(value: object, name: str, advice: str) -> None:
    """Require something to call that is not a class."""
    if isinstance(value, type) or not callable(value):
        raise WrongType(name, "be callable", _typed(value), advice)


def check_optional_callable(value: object, name: str, advice: str) -> None:
    """Require something to call, or `None`."""
    if value is not None:
        check_callable(value, name, advice)


def check_methods(value: object, name: str, methods: tuple[str, ...], example: str) -> None:
    """Require an object with these methods; a class is none."""
    missing = [each for each in methods if not callable(getattr(value, each, None))]
    if missing or isinstance(value, type):
        expected = f"have the methods {', '.join(methods)}"
        raise WrongType(name, expected, _typed(value), f"Use for example {example}.")


def check_exactly_one(**options: object) -> None:
    """Require that exactly one of the named options is given."""
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        what = f"Exactly one of the parameters {[*options]}"
        raise WrongValue(what, "be given", f"{given or 'none'}")


def all_finite(value: Tensor) -> bool:
    """Whether all entries are finite; one pass where the sum is (the usual case)."""
    summed = not value.is_complex() and math.isfinite(value.sum().item())
    return summed or bool(torch.isfinite(value).all())


def _count_bad(value: Tensor) -> int:
    return int((~torch.isfinite(value)).sum())


def _typed(value: object) -> str:
    return f"{type(value).__name__} ({_short(value)})"


def _short(value: object) -> str:
    """How an error shows what was found, in one short line."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_ours(error: BaseException) -> bool:
    """Whether gradveil itself raised an error, not torch or code of the user's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return name.startswith("gradveil.")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; on a CPU torch raises a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = "out of memory|(can't|cannot) allocate memory|not enough memory"
    return isinstance(error, RuntimeError) and re.search(text, str(error), re.I) is not None


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def device_of(name: str | torch.device, parameter: str = "device") -> torch.device:
    """The device of this name, if this machine has it."""
    try:
        if not isinstance(name, (str, torch.device)):
            raise TypeError(f"{type(name).__name__}, no name")
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # fails where there are no numbers
        if device.type == "cpu" and device.index:
            raise ValueError("processors have no numbers")
        return device
    except Exception as error:  # each backend has its own kinds
        expected = "name a device of this machine, as 'cpu' or 'cuda:0'"
        raise WrongValue(parameter, expected, f"{name!r}: {first_line(error)}") from None

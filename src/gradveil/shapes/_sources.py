"""Where shapes come from: the model alone, public examples, or the server within limits.

And how far examples are followed: what a model's outputs say of made-up and of public ones.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from math import log
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from gradveil._checks import (
    NonFiniteError,
    WrongValue,
    check_count,
    check_finite,
    check_inputs,
    check_kind,
    check_pair,
    check_positive,
    check_ratio,
    check_tensor,
    first_line,
)
from gradveil._random import named_stream, normal_like, seed_from
from gradveil._tensors import Tensors, flatten, unflatten
from gradveil.mechanisms import constant_like
from gradveil.messages import (
    GradientMessage,
    LocalUpdateMessage,
    Message,
    ModelError,
    MovableMessage,
    TokenGradient,
    check_match,
    couples_examples,
    gradient_of,
    movable,
    outputs_of,
    random_ids,
)
from gradveil.sensitivity import Moments

from ._fit import fit_shape, gather, moments_for, shape_with
from ._shape import Given, Needs, Request, Shape, Source, check_state

SEEN = (GradientMessage, LocalUpdateMessage)
"""Messages whose model and loss can be seen."""

OUT = (
    "Use public examples (source=Public((inputs, targets))), or the private batch"
    " (source='private')."
)
"""The way out where examples cannot be made up."""


class KeptSource(Source):
    """Makes a shape every `refresh_every` calls, and when what it is for has changed.

    That is said by a key: the names and shapes of the model's parameters, and what else it is made
    for. The model itself is not kept alive.
    """

    any_model = True
    """Whether it is for every model of the same names and shapes, such as that of each round."""

    def __init__(self, refresh_every: int = 20) -> None:
        check_count(refresh_every, "refresh_every")
        self.refresh_every = refresh_every
        self.reset()

    def reset(self) -> None:
        """Forget the shape, as for a new model."""
        self._left = 0
        self._key: list[Any] = []
        self._given: Given | None = None
        self._owner: ReferenceType[nn.Module] | None = None

    @abstractmethod
    def _setting(self, asked: Request) -> list[Any]:
        """Numbers and text that change with what else the shape is made for."""

    @abstractmethod
    def _made(self, asked: Request) -> Given:
        """A new shape."""

    def given(self, asked: Request) -> Given:
        """The shape that is kept, or a new one where it is due."""
        model = getattr(getattr(asked.message, "loss", None), "model", None)
        parameters: Tensors = getattr(movable(asked.message), "parameters", {})
        names = (part for name, p in parameters.items() for part in (name, *p.shape))
        key = [*self._setting(asked), *names]
        of_another = self._owner is not None and self._owner() is not model
        if self._given is None or key != self._key or of_another or not self._left:
            self._given, self._key, self._left = self._made(asked), key, self.refresh_every
        self._owner = None if self.any_model else ref(model)  # type: ignore[arg-type]
        self._left -= 1
        return self._given.to(asked.inputs.device)

    def follow(self, other: "KeptSource") -> None:
        """Copy another source's kept shape and restart its refresh count.

        So several defenses, or the clients of several trainings, have a shape that was made once at
        the same model.
        """
        check_kind(other, "other", type(self), f"Use another {type(self).__name__}.")
        self.reset()
        self._given, self._key, self._left = other._given, list(other._key), self.refresh_every

    def state_dict(self) -> dict[str, Any]:
        """What is kept and the number of calls that had it; nothing before the first call."""
        if self._given is None:
            return {}
        step, shape = self.refresh_every - self._left, dict(self._given.shape.factors)
        return {"step": step, "key": list(self._key), "shape": shape, **vars(self._given.moments)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned, at the next model of its key."""
        names = {field.name for field in fields(Moments)}
        check_state(state, {"step", "key", "shape", *names})
        self.reset()
        if state:
            self._left, self._key = -int(state["step"]) % self.refresh_every, list(state["key"])
            moments = Moments(**{name: state[name] for name in names})
            self._given = Given(Shape(state["shape"]), moments)

    def __getstate__(self) -> dict[str, Any]:
        """Elsewhere the model is another one, so that what belongs to a model stays here."""
        if self._owner is None:
            return dict(vars(self))
        other = self.__deepcopy__({})
        other.reset()
        return dict(vars(other))


class ModelSource(KeptSource):
    """The model alone: the moments of made-up examples, in a shape of tensors, rows and columns.

    Nothing of the private batch enters but its shape and type and those of its targets, so that
    what is made from this reveals nothing. On a model that has been trained, made-up examples are
    of another kind than those that it knows (`freshness`): the shape is then isotropic.

    The shape is made anew for another model, too, and when parameters, examples, loss or mode
    change; not for more or fewer examples. The made-up examples come from a stream of their own,
    always the same one: who knows the model knows the shape, and nothing is taken from the
    generator of the noise.

    Args:
        refresh_every: Calls from one shape to the next; docs/benchmarks.md has what one costs.

    >>> from gradveil import OptimalNoise
    >>> OptimalNoise(scale=0.1, source=ModelSource(refresh_every=5)).source
    ModelSource(refresh_every=5)
    """

    name = "model"
    any_model = False

    def given(self, asked: Request) -> Given:
        """The shape that is kept, or a new one where it is due."""
        if asked.needs.examples is not None:
            raise WrongValue(
                asked.needs.examples,
                "be used with a source that sees real examples: synthetic ones say how noise should"
                " be spread, not how much",
                "a shape from the model alone",
                "Use source=Public((inputs, targets)) with public examples, or source='private',"
                " which reveals the batch.",
            )
        message = asked.message
        if not isinstance(message, SEEN) or not message.loss.is_own:
            return self._made(asked)  # nothing tells whether its model is another one
        return super().given(asked)

    def _made(self, asked: Request) -> Given:
        return model_given(asked.message, asked.inputs)

    def _setting(self, asked: Request) -> list[Any]:
        """What the moments depend on beside the parameters and the number of examples."""
        message: Any = asked.message
        loss_fn = message.loss.loss_fn
        pair = (asked.inputs, message.targets)
        like = [(t.dtype, *t.shape[1:]) for t in pair if isinstance(t, Tensor)]
        local = [getattr(message, n, None) for n in ("lr", "steps", "batch_size", "momentum")]
        loss = getattr(loss_fn, "__qualname__", type(loss_fn).__qualname__)
        training = sum(module.training for module in message.loss.model.modules())
        return [training, str([type(message).__name__, loss, like, local])]

    def __repr__(self) -> str:
        return f"ModelSource(refresh_every={self.refresh_every})"


def model_given(
    message: Message, inputs: Tensor, generator: torch.Generator | None = None
) -> Given:
    """What made-up examples say of a message; of the inputs no value is read.

    Where examples add up there is one more of them than in the private batch, up to ten: fewer cost
    little of the gain over isotropic noise, and more cost time. They are not real ones: at an
    exponent of 1 their rows and columns lose to isotropic noise on a fresh MNIST CNN. Where
    examples do not add up, one batch is one draw of g, and only tensors are told apart.
    """
    generator = named_stream("plan", "model") if generator is None else generator
    size, batches = len(inputs), 2
    if isinstance(message, GradientMessage):
        size, batches = min(len(inputs) + 1, 10), 1
    if isinstance(message, SEEN):
        check_finite(message.loss.parameters, "the model's weights")  # not the examples' fault
    try:
        trust = freshness(message, inputs, generator, fewest=48)
        made = [synthetic(movable(message), inputs, generator, size) for _ in range(batches)]
    except (ModelError, NonFiniteError) as error:  # one that works on its own examples
        expected = (
            "accept made-up examples, standard normal numbers in the shape of the inputs, so that a"
            " shape can be made from the model alone; one that reads a category off a column does"
            " not"
        )
        found = f"that it fails on them: `{first_line(error.__cause__ or error)}`"
        raise ModelError("model", expected, found, OUT) from error
    known = [gather(own, x, generator, examples=trust > 0) for own, x in made]
    alone = all(batch.example_squares is not None for batch in known)
    exponents = (1.0, 0.4, 0.5, 0.0) if alone else (1.0, 0.0, 0.0, 0.0)
    shape = shape_with(known, len(inputs), [trust * e for e in exponents])
    return Given(shape, moments_for(known, len(inputs)))


class Public(KeptSource):
    """Public examples at the current model (Theorems 2 to 4).

    What leaves the client is then a fixed channel, whatever is in the private batch. The shape is
    shrunk towards isotropic noise as far as the public examples themselves demand it, and
    altogether where the model shows that they are of another kind (`fit_shape`, `trust_in`).
    `utility_budget` and `target_error` are met on the public examples.

    The shape is made anew, too, when parameters have other names or shapes, or when there are more
    or fewer private examples. Probes come from a generator of their own, so that what they draw
    does not shift the noise.

    Args:
        examples: Public inputs and targets, shaped like private ones. Eight batches reach nearly
            all of the gain that there is; two are enough to do no worse than isotropic noise.
        refresh_every: Calls from one shape to the next.
        batch_size: Of the public batches; that of the private one if `None`, or half of the
            examples where there are fewer than two batches.

    >>> from gradveil import OptimalNoise
    >>> public = Public((torch.zeros(8, 3), torch.zeros(8).long()))
    >>> OptimalNoise(scale=0.1, source=public).source
    Public(8 examples, refresh_every=10)
    """

    name = "public"

    def __init__(
        self,
        examples: tuple[Tensor, Tensor],
        refresh_every: int = 10,
        batch_size: int | None = None,
    ) -> None:
        check_pair(examples, "examples")
        tokens = gradient_of(examples[0]).takes_tokens
        check_inputs(examples[0], "examples[0]", tokens=tokens)
        check_tensor(examples[1], "examples[1]")
        check_match(*examples, tokens=tokens)
        if batch_size is not None:
            check_count(batch_size, "batch_size")
        super().__init__(refresh_every)
        self.examples, self.batch_size = examples, batch_size

    def _setting(self, asked: Request) -> list[Any]:
        return [asked.needs.key, len(asked.inputs)]

    def _made(self, asked: Request) -> Given:
        needs, _, message, inputs, given = asked
        generator = torch.Generator(given.device).manual_seed(seed_from(given))
        own, size = movable(message), len(inputs)
        public, targets = self.examples
        order = torch.randperm(len(public), generator=generator, device=generator.device)
        public = public[order.to(public.device)].to(inputs)
        targets = targets[order.to(targets.device)].to(inputs.device)
        each = min(self.batch_size or size, max(1, len(public) // 2))
        parameters: Tensors = getattr(own, "parameters", {})
        numbers = sum(p.numel() for p in parameters.values()) or 1
        most = max(2, 2**26 // numbers)  # of batches, whose evidence has to fit into memory
        whole = min(len(public) // each, most) * each
        batches = [
            gather(own.of(t), x, generator, needs.estimator, judged=needs.judged)
            for x, t in zip(public[:whole].split(each), targets[:whole].split(each), strict=True)
        ]
        trust = trust_in(own.of(targets), public, generator)
        return Given(fit_shape(batches, size=size, trust=trust), moments_for(batches, size))

    def __repr__(self) -> str:
        return f"Public({len(self.examples[0])} examples, refresh_every={self.refresh_every})"


class FromServer(Source):
    """A shape that the server sends; the client sets the amount.

    Nothing is measured, and a step costs what isotropic noise costs. Before the first shape all
    levels are equal. With relative levels r_i the noise has the variances

        Σ_ii = scale² ((1 - floor²) r_i / mean(r) + floor²),    r_i ≤ cap · geometric mean of r.

    Formal guarantees, for every shape that a server may send, by design or by mistake: no entry
    has a standard deviation below `floor` times the scale, and their root mean square is the scale.
    What is sent is isotropic noise of floor · scale, and more noise on top of it that does not
    depend on the batch; so whatever holds for `GradientNoise(floor * scale)` holds here. A few
    entries cannot soak up the noise either: whatever one in a hundred asks for, the others keep
    nine tenths of the scale in root mean square (with the default `cap`). For rounding all of this
    holds of the steps. Pruning sends the share of entries that the client says.

    A hostile server can still choose where noise is larger, put the entries that it wants to read
    at the floor, and, of pruning, choose which entries are sent. Pruning without noise and rounding
    have no guarantee at all. A larger `floor` leaves a server less to choose.

    Args:
        floor: The least standard deviation over the scale, in [0, 1]; 1 is isotropic noise. 0.05
            costs an honest server less than 1 % of the gain where layers are alike, and a tenth
            where they differ by 1e4 (a fresh CIFAR ConvNet-16).
        cap: The largest level that counts, over the geometric mean of all.

    >>> from gradveil import OptimalNoise
    >>> source = FromServer(floor=0.5)
    >>> source.use(Shape({"w": (torch.tensor([1.0, 1.0, 1e20]),)}))
    >>> defense = OptimalNoise(scale=0.1, source=source)
    >>> std = defense.respond(lambda x: {"w": x.sum(0)}, torch.zeros(1, 3)).mechanism.std["w"]
    >>> bool((std >= 0.05).all()), round(float(std.square().mean()), 6)
    (True, 0.01)
    """

    name = "server"

    def __init__(self, floor: float = 0.05, cap: float = 10.0) -> None:
        check_ratio(floor, "floor")
        check_positive(cap, "cap")
        self.floor, self.cap = floor, cap
        self.shape: Shape | None = None
        """The last shape; `None` before the first."""

    def use(self, shape: Shape) -> None:
        """Spread noise by this shape from now on; that it fits is seen when there is a message."""
        check_kind(shape, "shape", Shape, "Give the one that the server sent.")
        if shape.silent:
            found = "`silent = True`: a level of 0 would switch the noise off"
            advice = "Give it to `PrivateNoise`, which sends no such entry."
            raise WrongValue("shape", "have levels above 0", found, advice)
        self.shape = shape

    def given(self, asked: Request) -> Given:
        """The server's shape within limits; the moments hold names and sizes, and no numbers."""
        like = asked.like
        moments = Moments(constant_like(1.0, like), None, asked.inputs.numel())
        if self.shape is None:
            return Given(replace(Shape.isotropic(like), floor=self.floor), moments)
        kept = self.shape.made  # once for all steps, and clients of a process, that share it
        sizes = [(name, v.shape, v.dtype, v.device) for name, v in like.items()]
        key = (self.floor, self.cap, *sizes)
        if key not in kept:
            levels = limited_levels(self.shape, like, self.cap)
            factors = {name: (level.to(like[name]),) for name, level in levels.items()}
            kept[key] = Given(Shape(factors, floor=self.floor), moments)
        given: Given = kept[key]
        return given

    def check(self, needs: Needs) -> None:
        """Require an amount that needs no examples, and a defense that takes a shape."""
        if needs.examples is not None:
            raise WrongValue(
                needs.examples,
                "be left out with a shape from the server, which says how noise is spread, not how"
                " much",
                "it given",
                "Use a `scale`, a `ratio` or a `step`, or source=Public(examples).",
            )
        if not needs.sensitivities:
            expected = "be left out for a defense that spreads nothing by a shape"
            advice = "Use it with optimal noise, pruning or rounding."
            raise WrongValue("source", expected, repr(self), advice)

    def reset(self) -> None:
        """Forget the shape: equal levels until the next one."""
        self.shape = None

    def state_dict(self) -> dict[str, Any]:
        """The last shape, by parameter name; nothing before the first."""
        return {} if self.shape is None else {"shape": dict(self.shape.factors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        check_state(state, {"shape"})
        self.reset()
        if state:
            self.use(Shape(state["shape"]))

    def __repr__(self) -> str:
        return f"FromServer(floor={self.floor}, cap={self.cap})"


def limited_levels(shape: Shape, like: Mapping[str, Tensor], cap: float) -> Tensors:
    """r_i over the geometric mean of all levels, at most `cap`.

    A level counts up to 1e4 times the median of all, and down to 1e-4 of it, so that no few of them
    move the mean by much. It stays above 0.
    """
    shape.check(like)
    device = next(iter(like.values())).device
    one, logs = torch.zeros((), dtype=torch.float64, device=device), {}
    for name, value in like.items():
        parts = [factor.to(one).log() for factor in shape.factors[name]]
        logs[name] = sum(parts, one).expand(value.shape)
    row = flatten(logs)
    if len(row):
        row = (row - row.median()).clamp_(-log(1e4), log(1e4))
        row = (row - row.mean()).exp_().clamp_(1e-9, cap)
    return unflatten(row, like)


def synthetic(
    message: Message, inputs: Tensor, generator: torch.Generator, size: int | None = None
) -> tuple[MovableMessage, Tensor]:
    """The same message for made-up examples, `size` of them or as many as there are, and those.

    Of the inputs and of the message's targets only shape, type and device are read, no value.
    Inputs are drawn from N(0, 1), ids of tokens evenly from all that there are. Targets that are
    integers are the classes of the model's outputs, each equally often, in a random order;
    floating-point ones are drawn from N(0, 1).
    """
    own = movable(message)
    like = inputs.new_empty(()).expand(size or len(inputs), *inputs.shape[1:])
    if isinstance(message, TokenGradient):
        made = random_ids(message, like, generator)
    else:
        made = normal_like(like, generator)
    return own.of(_targets(own, made, generator)), made


def _targets(message: MovableMessage, made: Tensor, generator: torch.Generator) -> Tensor:
    targets = message.targets
    if not isinstance(targets, Tensor) or targets.is_complex():
        found = targets.dtype if isinstance(targets, Tensor) else type(targets).__name__
        raise TypeError(
            "Targets should be a tensor of integers or of floating-point numbers, so that examples"
            f" can be made up for a shape. Found {found}. {OUT}"
        )
    targets = targets.new_empty(()).expand(len(made), *targets.shape[1:])
    if targets.is_floating_point():
        return normal_like(targets, generator)
    few, classes = made[:2], 2
    if targets.dtype is not torch.bool:
        classes = _classes(outputs_of(message, few), targets[: len(few)])
    order = torch.randperm(targets.numel(), generator=generator, device=generator.device)
    drawn = (order % classes).reshape(targets.shape)
    return drawn.to(device=targets.device, dtype=targets.dtype)


def _classes(outputs: Any, targets: Tensor) -> int:
    """How many classes outputs of shape (B, C, ...) or (B, ..., C) tell apart.

    >>> _classes(torch.zeros(4, 10), torch.zeros(4)), _classes(torch.zeros(4), torch.zeros(4))
    (10, 2)
    >>> _classes(torch.zeros(4, 21, 8, 8), torch.zeros(4, 8, 8))
    21
    """
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else ()
    wanted = tuple(targets.shape)
    if (shape and shape == wanted) or shape == (*wanted, 1):
        return 2
    if len(shape) > 1 and (shape[0], *shape[2:]) == wanted:
        return shape[1]
    if shape and shape[:-1] == wanted:
        return shape[-1]
    found = f"shape {shape}" if shape else type(outputs).__name__
    raise ValueError(
        f"Outputs should have the shape (B, C, ...) or (B, ..., C) for targets of shape {wanted},"
        f" so that the classes C can be counted. Found {found}. {OUT}"
    )


class OutputCheck(NamedTuple):
    """What a model's outputs o on some examples have to do with their targets.

    δ is the gradient of the loss with respect to the outputs. Of `scale` and `shift` one standard
    error is taken off.
    """

    scale: float
    """The cosine of centred outputs and δ. Above 0 the model is surer than it should be."""
    shift: float
    """δ̄ᵀ (E δδᵀ - δ̄δ̄ᵀ)⁻¹ δ̄, about twice what another constant would take off the loss. With too few
    examples for that, ‖δ̄‖² / E‖δ‖²."""
    is_known: bool
    """Whether outputs agree with the targets beyond chance: by how much that cosine grows, in units
    of δ, when targets change places. Real images have 0.25 to 4.5 after training, others < 0.09."""


def trust_in(message: Message, inputs: Tensor, generator: torch.Generator) -> float:
    """How far a plan may follow these examples, from 0 (not at all) to 1.

    A trained model knows examples of the kind that it was trained on: its outputs agree with their
    targets. If it does not know them, they are of another kind (or have other labels), and their
    gradients say little about those of the private batch. A fresh model knows nothing, and follows
    all examples. It is told from a trained one by its outputs on made-up examples: training leaves
    them sure of themselves, and so mostly wrong, on what it has never seen.

    In a regression examples are not followed if another constant would clearly be better. That
    holds for many a fresh model, too, whose plan is then isotropic. 1 where outputs cannot be seen.
    """
    found = check_outputs(message, inputs)
    if found is None:
        return 1.0
    sure = _falling(found.scale, 0.08, 0.16)  # too sure: trained, and not on examples like these
    if movable(message).targets.is_floating_point():
        sure = min(sure, _falling(found.shift, 0.1, 0.3))
    if found.is_known:
        return sure
    try:
        return min(sure, freshness(message, inputs, generator))
    except (TypeError, ValueError):  # none can be made up, or the model does not take them
        return sure


def freshness(
    message: Message, inputs: Tensor, generator: torch.Generator, fewest: int = 128
) -> float:
    """1 for a fresh model and 0 for a trained one, by its outputs on made-up examples.

    Fresh models (MNIST CNN, CIFAR ConvNet-16) have a fault of at most 0.032; after 60 and 300 steps
    they have 0.086 to 2.2. Of the inputs only shape, type and device are read. There are 128
    examples, or as few as `fewest` where they are four for each output, and fewer for outputs of
    more than 2²⁴ numbers. A `ModelError` where the model fails on them.
    """
    outputs = 1
    if isinstance(message, SEEN):
        blank = inputs.new_zeros((2, *inputs.shape[1:]))  # BatchNorm takes no single one
        found = outputs_of(message, blank)
        outputs = max(1, found.numel() // 2) if isinstance(found, Tensor) else 1
    count = min(128, max(fewest, 4 * outputs), max(4, 2**24 // outputs))
    check = check_outputs(*synthetic(message, inputs, generator, count))
    if check is None:
        return 1.0
    return _falling(max(check.scale, 0.0) + max(check.shift, 0.0), 0.045, 0.08)


def check_outputs(message: Message, inputs: Tensor) -> OutputCheck | None:
    """Outputs beside targets, and these in five wrong orders; `None` where none can be seen."""
    if not isinstance(message, SEEN) or len(inputs) < 4:
        return None
    outputs = _outputs(message, inputs)
    targets = movable(message).targets
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return None
    if outputs.shape[:1] != inputs.shape[:1] or not outputs.is_floating_point():
        return None
    right = _signals(message, outputs, targets)
    turns = range(1, min(5, len(inputs) - 1) + 1)
    wrong = torch.stack([_signals(message, outputs, targets.roll(n, 0)) for n in turns]).mean(0)
    outputs = outputs.double().flatten(1)
    centred = outputs - outputs.mean(0)
    size = float((centred.square().sum() * right.square().sum()).sqrt()) / len(outputs)
    if not size > 0:
        return OutputCheck(0.0, 0.0, False)
    scale, scale_error = _mean_and_error((centred * right).sum(1) / size)
    skill, skill_error = _mean_and_error((centred * (wrong - right)).sum(1) / size)
    is_known = skill > max(0.1, 2.5 * skill_error)
    return OutputCheck(scale - scale_error, _shift(right), is_known)


def _outputs(message: GradientMessage | LocalUpdateMessage, inputs: Tensor) -> Any:
    """What the model returns; on a processor of 16 examples at a time, where it takes them so."""
    alone = inputs.device.type == "cpu" and not couples_examples(message.loss.model)
    parts = inputs.split(16) if alone else (inputs,)
    with torch.no_grad():
        outputs = [outputs_of(message, part) for part in parts]
    rows = all(isinstance(o, Tensor) and o.dim() for o in outputs)
    return torch.cat(outputs) if len(outputs) > 1 and rows else outputs[0]


def _signals(message: MovableMessage, outputs: Tensor, targets: Tensor) -> Tensor:
    """δ, one row for each example, of outputs that are given."""
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        value = message.loss.loss_of_outputs(leaf, targets)  # type: ignore[attr-defined]
        if not value.requires_grad:  # a loss that depends on no output, as clients will be told
            return torch.zeros_like(leaf, dtype=torch.float64).flatten(1)
        (delta,) = torch.autograd.grad(value, leaf)
    return delta.double().flatten(1)


def _mean_and_error(row: Tensor) -> tuple[float, float]:
    return float(row.mean()), float(row.std()) / len(row) ** 0.5


def _shift(signals: Tensor) -> float:
    """Less its mean and one standard error by chance: D/N and √(2D)/N for D directions."""
    count, mean = len(signals), signals.mean(0)
    if 4 * signals.shape[1] > count:
        return float(mean.square().sum() / signals.square().sum(1).mean()) - 2 / count
    values, vectors = torch.linalg.eigh(signals.T @ signals / count)
    real = values > 1e-6 * values.max()
    share = float(((vectors.T @ mean)[real].square() / values[real]).sum())
    directions = int(real.sum())
    chance: float = (directions + (2 * directions) ** 0.5) / count
    return share / max(1 - share, 1e-9) - chance


def _falling(value: float, start: float, end: float) -> float:
    """1 up to `start`, 0 from `end` on, and a line between them."""
    return min(1.0, max(0.0, (end - value) / (end - start)))

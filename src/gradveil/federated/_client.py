"""A client: private data, a defense of its own, and replies that hold nothing else."""

import secrets
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradveil._checks import (
    WrongValue,
    check_choice,
    check_count,
    check_finite,
    check_inputs,
    check_kind,
    check_seed,
    check_structure,
    check_tensor,
)
from gradveil._random import generator_or_fresh, named_stream
from gradveil._tensors import Tensors
from gradveil.defenses import Defended, Defense, PrivateNoise
from gradveil.messages import (
    LocalSteps,
    LossFunction,
    check_match,
    check_model,
    explained,
    gradient_of,
    in_a_fork,
    secluded,
    size_in_bytes,
    values_of,
)
from gradveil.privacy import check_sample_rate, poisson_sample
from gradveil.shapes import FromServer, KeptSource, Shape
from gradveil.theory import utility

from ._guard import AnyMessage, ModelGuard

SAMPLINGS = ("shuffle", "poisson")


def _check_examples(inputs: Tensor, targets: Tensor) -> None:
    """Require inputs with their targets; there may be none of both."""
    check_tensor(inputs, "inputs")
    check_tensor(targets, "targets")
    if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) or len(targets):
        tokens = gradient_of(inputs).takes_tokens
        check_inputs(inputs, tokens=tokens)
        check_match(inputs, targets, tokens=tokens)


class NoReplyError(WrongValue):
    """A client, or a whole round, without a reply that could be used; nothing was sent."""


@dataclass(frozen=True)
class Reply:
    """All that leaves a client: the defended values, and how many examples they stand for."""

    values: Tensors
    examples: int

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return size_in_bytes(self.values)


class Costs(NamedTuple):
    """What one reply is worth: for simulations, and never sent."""

    loss: float | None
    """Of the batch, undefended, before the step; `None` for a batch without examples."""
    utility_first: float | None = None
    """U1 and U2 of the mechanism that made the reply; `None` for a defense without one."""
    utility_second: float | None = None


@dataclass(frozen=True)
class Batches:
    """The batches of a client, one for each reply.

    "shuffle": each epoch is a new permutation, cut into pieces of `size`; the last may be smaller.
    "poisson": each example with probability `rate`, independently of all others and of other
    replies; there may be none. This is the sampling that accountants mean.
    """

    count: int
    """The client's examples, n."""
    size: int
    """Of a batch. With Poisson sampling it is B, the fixed number that a private sum is divided by,
    whatever n and the rate are: a divisor made from n would tell n."""
    sampling: str = "shuffle"
    rate: float | None = None
    """q of Poisson sampling, a public number; size/n if `None`, at most 1: n is public then."""
    least: int = 1
    """The fewest examples in a shuffled piece: a shorter rest of an epoch is left out."""
    neighbours: str = field(init=False, default="replace-one")
    """What an account of these batches can be about (`epsilon_after`): "add-remove" where the rate
    was given; "zero-out" where it was made from n, as one example less would change it for all
    others; "replace-one" for a shuffled epoch, where it would move all that come after it."""

    def __post_init__(self) -> None:
        check_count(self.size, "batch_size")
        check_count(self.least, "least")
        check_choice(self.sampling, "sampling", SAMPLINGS)
        if self.sampling == "shuffle" and self.rate is not None:
            expected, advice = "be left out for sampling='shuffle'", "Use sampling='poisson'."
            raise WrongValue("sample_rate", expected, f"{self.rate}", advice, True)
        if self.sampling == "poisson":  # the class is frozen for everyone else
            relation = "zero-out" if self.rate is None else "add-remove"
            object.__setattr__(self, "neighbours", relation)
            own = min(1.0, self.size / max(1, self.count))
            object.__setattr__(self, "rate", own if self.rate is None else self.rate)
        if self.rate is not None:
            check_sample_rate(self.rate)

    def draw(self, root: int, identifier: int, step: int, *, secure: bool) -> Tensor:
        """Which examples are in reply number `step`.

        Shuffled ones come from the stream (root, "batches", identifier, epoch), Poisson samples
        from (root, "batches", identifier, step), or from a secure generator.
        """
        if self.rate is not None:
            source = named_stream(root, "batches", identifier, step)
            source = generator_or_fresh(None, secure=True) if secure else source
            return poisson_sample(self.count, self.rate, source)
        whole, rest = divmod(self.count, self.size)
        epoch, position = divmod(step, max(1, whole + (rest >= self.least)))
        generator = named_stream(root, "batches", identifier, epoch)
        order = torch.randperm(self.count, generator=generator)
        return order[position * self.size :][: self.size]


def is_private(defense: Defense, unit: str | None = None) -> bool:
    """Whether a defense clips, for a guarantee on each "example", each "client" or on any."""
    return isinstance(defense, PrivateNoise) and unit in (None, defense.unit)


class Client:
    """Private examples behind a defense.

    Reply number t takes mini-batch t of the client's own data (`Batches`). Probes and noise of
    reply t come from the stream (seed, "defense", identifier, t), what the model itself draws
    (dropout) from (seed, "model", identifier, t). So the state of a client is the number t and what
    its defense remembers, and any process that has both continues exactly.

    Whoever knows the seed can compute the noise and take it off again: a seed is for simulations.
    With ``seed=None`` the noise comes from a `SecureGenerator`, which is what a deployment needs.
    (Without ``gradveil[privacy]`` it comes from a Mersenne Twister filled by the system, and
    `PrivateNoise` is refused.)

    With `PrivateNoise` the number of examples in a reply is fixed, and so is the denominator: who
    was drawn, and how many, is not told. A batch without examples, or with a gradient of 0, is
    answered with noise alone. So is every batch of a client without examples (of fewer than
    `least`, where batches are shuffled): it looks like one whose only example is empty, or, with
    unit="client", like one whose update is 0. Give its `inputs` the shape of an example, which a
    guard needs: ``torch.empty(0, 28, 28)``. What (ε, δ) is about is `batches.neighbours`.

    Args:
        identifier: Of this client among the others, at least 0.
        inputs, targets: Its examples and their labels; there may be none.
        defense: Copied, so that what it remembers is this client's own.
        batch_size: Examples in a reply (`Batches.size`).
        seed: The root of its random streams; `None` for numbers that nobody can repeat.
        local: FedAvg's local steps; `None` for FedSGD's gradient.
        sampling: "shuffle" or "poisson". If `None`, "poisson" for `PrivateNoise` with
            unit="example", whose account means it, and "shuffle" for all others.
        sample_rate: `Batches.rate`. With a rate, choose a batch_size of about q times the number of
            examples.
        secure: Whether noise and Poisson samples come from a `SecureGenerator`; if `None`, where
            there is no seed. A seed is then that of shuffled batches and of dropout; but with
            `PrivateNoise` dropout is secret wherever noise is.
        allow_zero: Whether a message of zeros only is defended and sent. By default it is an error,
            as it mostly means a broken model or loss; a batch that is fitted perfectly gives one.
        guard: Looks at each model before it is answered.
        least: `Batches.least`.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientNoise
    >>> from gradveil.models import build_model
    >>> data = torch.rand(8, 3), torch.randint(2, (8,))
    >>> client = Client(0, *data, GradientNoise(0.1), batch_size=4, seed=0)
    >>> client.reply(build_model("mlp", sizes=[3, 2]), cross_entropy).examples
    4
    """

    def __init__(
        self,
        identifier: int,
        inputs: Tensor,
        targets: Tensor,
        defense: Defense,
        *,
        batch_size: int,
        seed: int | None,
        local: LocalSteps | None = None,
        sampling: str | None = None,
        sample_rate: float | None = None,
        secure: bool | None = None,
        allow_zero: bool = False,
        guard: ModelGuard | None = None,
        least: int = 1,
    ) -> None:
        check_count(identifier, "identifier", least=0)
        check_kind(defense, "defense", Defense, "Use for example `NoDefense()`.")
        if seed is not None:
            check_seed(seed)
        if guard is not None:
            check_kind(guard, "guard", ModelGuard, "Use `ModelGuard()`.")
        if local is not None:
            check_kind(local, "local", LocalSteps, "Use for example `LocalSteps(0.1, 2)`.")
        _check_examples(inputs, targets)
        self.identifier, self.inputs, self.targets = identifier, inputs, targets
        usual = "poisson" if is_private(defense, "example") else "shuffle"
        self.batches = Batches(len(inputs), batch_size, sampling or usual, sample_rate, least)
        if self.batches.sampling == "poisson" and not is_private(defense, "example"):
            each = "a defense that does not clip each example: a Poisson sample may be empty"
            found = f"`sampling = 'poisson'` with {type(defense).__name__}"
            advice = "Leave it out, or use PrivateNoise."
            raise WrongValue("sampling", f"be 'shuffle' for {each}", found, advice)
        self.defense = deepcopy(defense)
        if isinstance(defense, PrivateNoise) and defense.unit == "example":
            fixed = defense.batch_size or batch_size  # that at hand would tell who was drawn
            self.defense = replace(defense, batch_size=fixed)
        if isinstance(self.defense.origin, KeptSource):  # each round's model is the federation's
            self.defense.origin.any_model = True
        self.batch_size, self.seed, self.local = batch_size, seed, local
        self.secure = seed is None if secure is None else secure
        self.allow_zero, self.guard = allow_zero, guard
        self._root = secrets.randbits(62) if seed is None else seed
        self._step = 0
        self._drawn: Tensor | None = None

    def use(self, shape: Shape) -> None:
        """Take the server's shape for the replies to come, if its source is `FromServer`."""
        if isinstance(self.defense.origin, FromServer):
            self.defense.origin.use(shape)

    def reply(self, model: nn.Module, loss_fn: LossFunction) -> Reply:
        """The defended message of the next mini-batch, and its number of examples.

        Raises:
            NonFiniteError: If weights, message or what would be sent is not finite.
            NoReplyError: If there are no examples, for defenses other than `PrivateNoise`, or if
                all of the message is 0.
            RefusedError: If the guard refuses the model.
        """
        message, inputs = self._next_message(model, loss_fn)
        return self._reply(self._respond(message, inputs), inputs)

    def reply_with_costs(self, model: nn.Module, loss_fn: LossFunction) -> tuple[Reply, Costs]:
        """The same reply beside what it is worth, which is for the client's own eyes."""
        message, inputs = self._next_message(model, loss_fn)
        loss = self._loss(message, inputs)
        defended = self._respond(message, inputs)
        reply = self._reply(defended, inputs)
        if defended.mechanism is None:
            return reply, Costs(loss)
        return reply, Costs(loss, *utility(defended.values, defended.mechanism))

    def state_dict(self) -> dict[str, Any]:
        """Numbers, and what the defense remembers."""
        return {"root": self._root, "step": self._step, "defense": self.defense.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        if state.keys() != {"root", "step", "defense"}:
            keys = "have the keys ['defense', 'root', 'step']"
            raise WrongValue("state", keys, f"{sorted(state)}", "Use what `state_dict` returned.")
        self.defense.load_state_dict(state["defense"])
        self._root, self._step = int(state["root"]), int(state["step"])
        self._drawn = None

    def next_indices(self) -> Tensor:
        """Which of the client's examples the next reply takes."""
        least, found = 1 if self.batches.rate is not None else self.batches.least, len(self.inputs)
        if found < least and is_private(self.defense):
            return torch.empty(0, dtype=torch.long, device=self.inputs.device)
        if found < least:
            wanted = "one example" if least == 1 else f"{least} examples"
            own, advice = f"Client {self.identifier}", "Leave it out, or partition otherwise."
            raise NoReplyError(own, f"have at least {wanted}", f"{found or 'none'}", advice)
        if self._drawn is None:
            drawn = self.batches.draw(self._root, self.identifier, self._step, secure=self.secure)
            self._drawn = drawn.to(self.inputs.device)
        return self._drawn

    def _next_message(self, model: nn.Module, loss_fn: LossFunction) -> tuple[AnyMessage, Tensor]:
        """The next batch and its message. The batch counts as taken, whatever becomes of it."""
        check_model(model)
        chosen, self._drawn = self.next_indices(), None
        self._step += 1
        check_finite(dict(model.named_parameters()), "the model's weights")
        device = next(model.parameters()).device
        inputs, targets = self.inputs[chosen].to(device), self.targets[chosen].to(device)
        seed = named_stream(self._root, "model", self.identifier, self._step - 1).initial_seed()
        message: AnyMessage = gradient_of(inputs)(model, loss_fn, targets, seed=seed)
        if self.guard is not None:
            with secluded(message) as alone:
                self.guard.check(alone, inputs)
        if self.local is not None:
            message = self.local.message(model, loss_fn, targets, seed=seed)
        return message, inputs

    def _loss(self, message: AnyMessage, inputs: Tensor) -> float | None:
        """The loss of the batch; none if it is empty.

        Where (ε, δ) is claimed in a process of its own, and none where there can be none: code that
        keeps something of the batch would bring it into the message.
        """
        if not len(inputs):
            return None

        def compute() -> Tensors:
            with secluded(message) as alone, torch.no_grad(), explained(alone, inputs):
                return {"loss": alone.loss(alone.parameters, inputs, alone.targets)}

        if is_private(self.defense):
            found = in_a_fork(compute, {"loss": torch.zeros((), dtype=torch.float64)})
            return None if found is None else float(found["loss"])
        found = compute()
        check_finite(found, "loss_fn(model(inputs), targets)")
        return float(found["loss"])

    def _generator(self) -> torch.Generator:
        """Of the reply whose batch was just taken."""
        if self.secure:
            return generator_or_fresh(None, secure=self.defense.secure)
        return named_stream(self._root, "defense", self.identifier, self._step - 1)

    def _respond(self, message: AnyMessage, inputs: Tensor) -> Defended:
        """The defended step. A message of zeros only is an error, whatever is made of it."""
        if not len(inputs) and is_private(self.defense, "client"):
            nothing = {n: torch.zeros_like(p) for n, p in message.parameters.items()}
            return self.defense.respond(lambda _: nothing, torch.zeros(1, 1), self._generator())
        zero = self.allow_zero or is_private(self.defense)
        try:
            defended = self.defense.respond(message, inputs, self._generator())
        except ValueError:
            if not zero:
                _check_signal(values_of(message, inputs))
            raise
        if not zero:
            _check_signal(defended.values)
        return defended

    def _reply(self, defended: Defended, inputs: Tensor) -> Reply:
        """What is sent, checked; a private one does not tell how many examples were drawn."""
        check_finite(defended.sent, "what the defense gave")
        told: int | None = len(inputs)
        if isinstance(self.defense, PrivateNoise):
            told = self.defense.batch_size if self.defense.unit == "example" else self.batch_size
        return Reply(defended.sent, told or len(inputs))


def _check_signal(values: Tensors) -> None:
    """Require a message that is not all zeros."""
    if any(bool(value.any()) for value in values.values()):
        return
    expected = "have at least one entry other than 0"
    found = (
        f"that all of its {sum(v.numel() for v in values.values())} entries are 0: the loss depends"
        " on no parameter, all units are dead, or the batch is fitted perfectly"
    )
    advice = "Nothing was sent; check model and loss, or pass `allow_zero=True`."
    raise NoReplyError("The message of a batch", expected, found, advice)


def load_received(model: nn.Module, received: Tensors) -> None:
    """Put a server's weights into the client's own model, all of them or none.

    Names, shapes and types have to be those of the model's `state_dict`, and numbers finite. A
    buffer may have the infinities that the client's own has, as a mask of attention does.
    """
    expected = model.state_dict()
    check_structure(received, expected, "weights", "the client's own model")
    cast: Tensors = {}
    for name, value in received.items():
        own = expected[name]
        as_sent = torch.float32 if own.dtype is torch.bfloat16 else own.dtype
        if value.dtype not in (own.dtype, as_sent):
            found = f"{value.dtype} for `{name}` instead of {own.dtype}"
            advice = "Send the model's `state_dict`."
            raise WrongValue("weights", "have the types of the client's own model", found, advice)
        cast[name] = value.to(own.dtype)
    known = {n: v.masked_fill((v == expected[n]) & expected[n].isinf(), 0) for n, v in cast.items()}
    check_finite(known, "the weights that the server sent")
    model.load_state_dict(cast)

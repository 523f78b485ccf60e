"""A client: private data, a defense of its own, and replies that hold nothing else."""

import secrets
import time
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._checks import (
    check_finite,
    check_inputs,
    check_kind,
    check_not_negative_count,
    check_seed,
    check_tensor,
)
from gradveil._random import generator_or_fresh, named_stream
from gradveil.defenses import Defended, Defense
from gradveil.messages import (
    GradientMessage,
    LocalSteps,
    LocalUpdateMessage,
    LossFunction,
    check_match,
    check_model,
    explained,
    gradient_of,
    secluded,
    values_of,
)
from gradveil.shapes import FromServer, KeptSource, Shape
from gradveil.theory import utility

from ._guard import ModelGuard
from ._reply import Costs, Reply, check_signal, check_weights
from ._sampling import Batches, fixed_size, is_private, told_size

AnyMessage = GradientMessage | LocalUpdateMessage


class NoDataError(ValueError):
    """A client without examples was asked for a reply."""


class Client:
    """Private examples behind a defense.

    Reply number t takes mini-batch t of the client's own data (`Batches`): shuffled anew in each
    epoch, or a Poisson sample. Its order comes from the stream (seed, "batches", identifier,
    epoch), the probes and the noise of reply t from the stream (seed, "defense", identifier, t),
    what the model itself draws (dropout) from (seed, "model", identifier, t); see `named_stream`.
    So the state of a client is the number t and what its defense remembers (its `state_dict`), and
    any process that has both continues exactly.

    Whoever knows the seed can compute the noise and take it off again: a seed is for simulations,
    and a run of seeded clients with `PrivateNoise` says so in `TrainingHistory.privacy`. With
    ``seed=None`` the noise comes from a `SecureGenerator`, which is what a deployment needs.
    (Without ``gradveil[privacy]`` it comes from a Mersenne Twister filled by the system, and
    `PrivateNoise` is refused.)

    With `PrivateNoise` the number of examples in a reply is fixed, and so is the denominator: who
    was drawn, and how many, is not told. A batch without examples, or with a gradient of 0, is
    answered with noise alone. So is every batch of a client without examples (of fewer than
    `least`, where batches are shuffled): it looks like one whose only example is empty, or, with
    unit="client", like one whose update is 0. Give its `inputs` the shape of an example, which a
    guard needs: ``torch.empty(0, 28, 28)``.

    What (ε, δ) of such a client is about is `batches.neighbours`: one example more or less where
    `sample_rate` is given, one replaced by an empty one where the rate is made from the number of
    examples, one replaced by another where batches are shuffled. In the last case the order may be
    known, as it is with a known seed: the account has every example in every step, and gains
    nothing from the order. Whatever it is, replacing one example moves one batch of an epoch by 2C
    and no other, and each batch is paid for as if it were that one. With unit="client" all that a
    client sends is clipped, in whatever order it was computed.

    Args:
        identifier: Of this client among the others, at least 0.
        inputs: Its examples; there may be none.
        targets: Their labels.
        defense: Copied, so that what it remembers is this client's own.
        batch_size: Examples in a reply. With Poisson sampling the fixed number that the sum over
            examples is divided by, however many there are.
        seed: The root of its random streams; `None` for numbers that nobody can repeat.
        local: FedAvg's local steps; `None` for FedSGD's gradient.
        sampling: "shuffle" or "poisson". If `None`, "poisson" for `PrivateNoise` with
            unit="example", whose account means it, and "shuffle" for all others.
        sample_rate: q of Poisson sampling, a public number; if `None`, batch_size over the number
            of examples, which is public then. With a rate, choose a batch_size of about q times
            that number.
        secure: Whether noise and Poisson samples come from a `SecureGenerator`; if `None`, where
            there is no seed. With a seed, it leaves that to the order of shuffled batches and to
            dropout; but with `PrivateNoise` dropout is secret wherever noise is.
        allow_zero: Whether a message of zeros only is defended and sent. By default it is an error
            (`NoSignalError`), as it mostly means a broken model or loss; a batch that is fitted
            perfectly gives one, too.
        guard: Looks at each model before it is answered, and refuses those that were made to give
            single examples away; `None`: every model is answered.
        least: The fewest examples that a reply is made of, but for Poisson samples: what is left
            of an epoch is not taken if it is less.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil.models import build_model
    >>> from gradveil import GradientNoise
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
        check_not_negative_count(identifier, "identifier")
        check_tensor(inputs, "inputs")
        check_tensor(targets, "targets")
        check_kind(defense, "defense", Defense, "Use for example `NoDefense()`.")
        if seed is not None:
            check_seed(seed)
        if guard is not None:
            check_kind(guard, "guard", ModelGuard, "Use `ModelGuard()`.")
        if local is not None:
            check_kind(local, "local", LocalSteps, "Use for example `LocalSteps(0.1, 2)`.")
        if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) or len(targets):
            tokens = gradient_of(inputs).takes_tokens
            check_inputs(inputs, tokens=tokens)
            check_match(inputs, targets, tokens=tokens)
        self.identifier, self.inputs, self.targets = identifier, inputs, targets
        usual = "poisson" if is_private(defense, "example") else "shuffle"
        self.batches = Batches(len(inputs), batch_size, sampling or usual, sample_rate, least)
        self.batches.check_for(defense)
        self.defense = fixed_size(deepcopy(defense), batch_size)
        if isinstance(self.defense.origin, KeptSource):  # each round's model is the federation's
            self.defense.origin.any_model = True
        self.batch_size, self.seed, self.local = batch_size, seed, local
        self.secure = seed is None if secure is None else secure
        self.allow_zero, self.guard = allow_zero, guard
        self._root = secrets.randbits(62) if seed is None else seed
        self._step = 0
        self._drawn: Tensor | None = None

    def use(self, shape: Shape) -> None:
        """Take the server's shape for the replies to come, if the defense's source is `FromServer`.

        All other defenses plan by themselves, and nothing changes.
        """
        if isinstance(self.defense.origin, FromServer):
            self.defense.origin.use(shape)

    def reply(self, model: nn.Module, loss_fn: LossFunction) -> Reply:
        """The defended message of the next mini-batch, and its number of examples.

        Raises:
            NonFiniteError: If the model's weights, its message or what would be sent is not finite.
            NoSignalError: If the loss depends on no parameter, or all of the message is 0.
            NoDataError: If the client has no examples, and its defense is not `PrivateNoise`.
            SuspiciousModelError: If the guard refuses the model.
        """
        message, inputs = self._next_message(model, loss_fn)
        return self._reply(self._respond(message, inputs), inputs)

    def reply_with_costs(self, model: nn.Module, loss_fn: LossFunction) -> tuple[Reply, Costs]:
        """The same reply beside what it cost, which is for the client's own eyes."""
        message, inputs = self._next_message(model, loss_fn)
        loss, seconds_gradient = _plain(message, inputs)
        start = _now(inputs.device)
        defended = self._respond(message, inputs)
        reply = self._reply(defended, inputs)
        seconds_defense = max(0.0, _now(inputs.device) - start - seconds_gradient)
        first = second = None
        if defended.mechanism is not None:
            first, second = utility(defended.values, defended.mechanism)
        return reply, Costs(loss, first, second, seconds_gradient, seconds_defense)

    def state_dict(self) -> dict[str, Any]:
        """The state to continue from: numbers, and what the defense remembers."""
        return {"root": self._root, "step": self._step, "defense": self.defense.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        if state.keys() != {"root", "step", "defense"}:
            raise ValueError(
                "Parameter `state` should have the keys ['defense', 'root', 'step']. Found"
                f" {sorted(state)}. Use what `state_dict` returned."
            )
        self.defense.load_state_dict(state["defense"])
        self._root, self._step = int(state["root"]), int(state["step"])
        self._drawn = None

    def next_indices(self) -> Tensor:
        """Which of the client's examples the next reply takes."""
        least = 1 if self.batches.rate is not None else self.batches.least
        if len(self.inputs) < least and is_private(self.defense):
            return torch.empty(0, dtype=torch.long, device=self.inputs.device)
        if len(self.inputs) < least:
            wanted, found = "one example" if least == 1 else f"{least} examples", len(self.inputs)
            raise NoDataError(
                f"Client {self.identifier} should have at least {wanted}. Found {found or 'none'}."
                " Leave it out, or choose a partition that gives it some."
            )
        if self._drawn is None:
            drawn = self.batches.draw(self._root, self.identifier, self._step, secure=self.secure)
            self._drawn = drawn.to(self.inputs.device)
        return self._drawn

    def _next_message(self, model: nn.Module, loss_fn: LossFunction) -> tuple[AnyMessage, Tensor]:
        """The next batch and its message. The batch counts as taken, whatever becomes of it."""
        check_model(model)
        chosen, self._drawn = self.next_indices(), None
        self._step += 1
        check_weights(model)
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

    def _generator(self) -> torch.Generator:
        """For the probes and the noise of the reply whose batch was just taken."""
        if self.secure:
            return generator_or_fresh(None, secure=self.defense.secure)
        return named_stream(self._root, "defense", self.identifier, self._step - 1)

    def _respond(self, message: AnyMessage, inputs: Tensor) -> Defended:
        """The defended step. A message of zeros only is an error, whatever its defense makes of it.

        Where a defense fails on such a message, that is the reason which is told.
        """
        zero = self.allow_zero or is_private(self.defense)
        if not len(inputs) and is_private(self.defense, "client"):
            nothing = {n: torch.zeros_like(p) for n, p in message.parameters.items()}
            return self.defense.respond(lambda _: nothing, torch.zeros(1, 1), self._generator())
        try:
            defended = self.defense.respond(message, inputs, self._generator())
        except ValueError:
            if len(inputs) and not is_private(self.defense):
                check_signal(message, inputs, values_of(message, inputs), allow_zero=zero)
            raise
        if len(inputs):
            check_signal(message, inputs, defended.values, allow_zero=zero)
        return defended

    def _reply(self, defended: Defended, inputs: Tensor) -> Reply:
        """What is sent, checked; a private one does not tell how many examples were drawn."""
        check_finite(defended.sent, "what the defense gave")
        return Reply(defended.sent, told_size(self.defense, self.batch_size) or len(inputs))


def _plain(message: AnyMessage, inputs: Tensor) -> tuple[float | None, float]:
    """The loss of the batch, and the seconds of the undefended message; none if it is empty."""
    if not len(inputs):
        return None, 0.0
    with secluded(message) as alone:
        with torch.no_grad(), explained(alone, inputs):
            loss = alone.loss(alone.parameters, inputs, alone.targets)
        check_finite({"loss": loss}, "loss_fn(model(inputs), targets)")
        start = _now(inputs.device)
        values_of(alone, inputs)
    return float(loss), _now(inputs.device) - start


def _now(device: torch.device) -> float:
    """Seconds, when all work given to an accelerator is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()

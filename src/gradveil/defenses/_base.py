"""The base class of all defenses, and what is asked about one."""

import re
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from gradveil._checks import check_choice, check_inputs, check_tensor, check_values
from gradveil._random import advance, generator_or_fresh, seed_from
from gradveil._tensors import Tensors, add_to_grad
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import (
    LossFunction,
    Message,
    check_finite_message,
    check_message,
    explained,
    gradient_of,
    takes_tokens,
    values_of,
)
from gradveil.sensitivity import Estimator, Moments, check_moments, measure_with_values
from gradveil.shapes import FromServer, Given, ModelSource, Needs, Request, Shape, Source

from ._accumulation import Accumulation

Own = TypeVar("Own", bound="Defense")


class Defended(NamedTuple):
    """A message before and after its defense. Only `sent` may leave the client.

    >>> from gradveil import GradientNoise
    >>> message = lambda inputs: {"w": inputs.sum(0)}
    >>> defended = GradientNoise(scale=0.1).respond(message, torch.ones(2, 3))
    >>> defended.values["w"], defended.mechanism.std["w"]
    (tensor([2., 2., 2.]), tensor([0.1000, 0.1000, 0.1000]))
    """

    values: Tensors
    """The message as it would be without a defense."""
    mechanism: AnyMechanism | None
    """What made `sent` of `values`; `None` for a defense that has no mechanism."""
    sent: Tensors
    """What the client sends, by parameter name."""


@dataclass(frozen=True)
class About:
    """What is asked about a defense, so that nobody has to read its name.

    >>> from gradveil import OptimalNoise
    >>> about = OptimalNoise(scale=0.1).about
    >>> about.family, about.source, about.private, about.amount
    ('noise', 'model', False, 'scale')
    """

    label: str
    """What tables and figures call it, as "optimal noise"."""
    family: str
    """What it shares with its classical or optimal counterpart, as "noise"; else its label. "none"
    sends the message as it is."""
    needs: Needs
    """What it has to know before it can say what it does to a message."""
    source: str = ""
    """Where its shape comes from: "model", "private", "public", "server"; "" without one."""
    private: bool = False
    """Whether its mechanism depends on the private batch, and so tells of it."""
    varies: bool = False
    """Whether the mechanism depends on the inputs, so that an attacker must plan it again at each
    guess. Magnitude pruning's does not count: which entries were cut shows in the message."""
    twin: "type[Defense] | None" = None
    """Its classical counterpart, where it is the optimal form of one."""
    amount: str | None = None
    """The option that says how much is done: "scale", "ratio" or "step"; `None` without one."""
    clamp: float | None = None
    """The threshold P if entries are clamped to [-P, P]; `None` if they are not."""
    formal_privacy: str | None = None
    """Which formal privacy it has by itself, in words; `None`: none."""
    whole: str = ""
    """Any step besides observing and applying the mechanism, as "clips it first"; "" if there is
    none: then one mechanism serves all batches, unless it is private."""


class Defense:
    """A map from what is known of a message to the mechanism that is applied to it.

    A new defense is one small file: implement `mechanism`, and `shape` where noise is not spread
    evenly; its bound, its utility and its strongest attacker come for free. One that is no
    mechanism overrides `respond` instead, and clients, audits and attacks all see what that sends.
    What a class knows about itself it says where it is defined: ``class Tenth(Defense, label="a
    tenth", amount="share")``; see `About` for the words.

    A defense keeps nothing from one call to the next: what there is to keep, its source keeps. One
    of another kind that remembers something has `state_dict`, `load_state_dict` and `reset`.
    """

    source: Source | str = "model"
    """Where the shape comes from when the defense is called on a message: "model" (synthetic
    examples), "private" (the batch itself, the paper's form, which tells who was in it, at any
    noise), "server", or a source such as `Public(examples)`."""

    estimator: Estimator | str = "auto"
    """How the sensitivities are measured when the defense is called on a message."""

    granularity: str = "parameter"
    """At "layer", "auto" measures only what one level per tensor needs."""

    secure: bool = False
    """Whether noise without a given generator has to come from a `SecureGenerator`."""

    clip: float | None = None
    """The option of this name: a threshold of entries, or of norms; `None` without one."""

    adds_up: ClassVar[bool] = False
    """Whether what it observes of micro-batches adds up as it is, whatever the loss."""

    reads: ClassVar[str] = "sensitivities"
    """What it reads of moments whatever the amount: "nothing", "values" or "sensitivities"."""

    _known: ClassVar[dict[str, Any]] = {}
    """What the class says of itself, of the fields of `About`."""

    def __init_subclass__(cls, **known: Any) -> None:
        super().__init_subclass__()
        cls._known = {**cls._known, "label": words_of(cls.__name__), **known}
        if cls.__call__ is not Defense.__call__:
            raise TypeError(
                "A defense should have no `__call__` of its own: what it returns is `respond(...)"
                f".sent`. Found one in {cls.__name__}. Override `respond`, which returns"
                " Defended(values, mechanism, sent); the mechanism may be `None`."
            )

    @cached_property
    def needs(self) -> Needs:
        """What it has to know before it can say what it does to a message."""
        amounts = ("utility_budget", "target_error")  # these are set by real examples
        asked = next((name for name in amounts if getattr(self, name, None) is not None), None)
        judged = asked == "target_error"
        return Needs(
            moments=self.reads != "nothing" or asked is not None,
            sensitivities=self.reads == "sensitivities" or judged,
            examples=asked,
            judged=judged,
            estimator=self.estimator,
        )

    @cached_property
    def about(self) -> About:
        """What is asked about it."""
        own, needs = type(self), self.needs
        ours = next(c for c in own.__mro__ if c.__module__.startswith("gradveil."))
        steps = ("observe", "respond")  # a user's own: nobody knows what they look at
        unknown = any(getattr(own, name) is not getattr(ours, name) for name in steps)
        private = (self.source == "private" and needs.moments) or unknown
        named = self.source if isinstance(self.source, str) else self.source.name
        found = {
            "family": self._known["label"],
            "source": "private" if private else named if needs.moments else "",
            "varies": private,
            "clamp": self.clip,
        }
        return About(needs=needs, private=private, **{**found, **self._known})

    def shape(self, moments: Moments) -> Shape:
        """How noise is spread for a message with these moments; here evenly."""
        return Shape.isotropic(moments.like)

    def mechanism(self, shape: Shape, moments: Moments) -> AnyMechanism:
        """What is done to a message: its shape says where, the moments may say how much."""
        raise TypeError(
            "A defense should have a method `mechanism` where one is asked for. Found none in"
            f" {type(self).__name__}. Implement it; a defense that only has a `respond` of its own"
            " can be called, audited and attacked, but it has no bound and no adaptive attack."
        )

    def plan(self, moments: Moments) -> Any:
        """The mechanism for a message with these moments, shaped by themselves."""
        check_moments(moments)
        self._check_given("to plan by moments")
        return self.mechanism(self.shape(moments), moments)

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """One defended step, which all take: measure, shape and apply.

        The generator, for probes and noise, is a fresh one if `None`.
        """
        check_message(message)
        check_tensor(inputs, "inputs")
        generator = generator_or_fresh(generator, secure=self.secure)
        values, moments = self.observe(message, inputs.detach(), generator)
        mechanism = self.made(self.given(moments, message, inputs, generator))
        del moments  # two tensors of the size of the message that are not needed any more
        return Defended(values, mechanism, mechanism.apply(values, generator))

    def __call__(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Tensors:
        """What the client sends, by parameter name: `respond(...).sent`."""
        return self.respond(message, inputs, generator).sent

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """The message's values and its own moments, sensitivities only for a private source."""
        needs = self.about.needs
        if not (self.about.private and needs.moments and needs.sensitivities):
            values = checked_values(message, inputs)
            return values, Moments.of_values(values, inputs.numel())
        few = self.granularity == "layer" and self.estimator == "auto" and not needs.judged
        estimator = "layers" if few else self.estimator
        return measure_with_values(
            message, inputs, estimator, generator=generator, judged=needs.judged
        )

    def given(
        self, moments: Moments, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> Given:
        """The shape for this message, and moments of what it comes from.

        These, and the values of the inputs, count for a private source only.
        """
        about = self.about
        if about.private or not about.needs.moments:
            return Given(self.shape(moments), moments)
        asked = Request(about.needs, moments.like, message, inputs, generator)
        return self.origin.given(asked)

    def made(self, given: Given) -> AnyMechanism:
        """The mechanism of what a source gives; once for what it keeps."""
        key, made = _options(self), given.shape.made
        if key not in made:
            made[key] = self, self.mechanism(given.shape, given.moments)  # itself: ids are its key
        mechanism: AnyMechanism = made[key][1]
        return mechanism

    @cached_property
    def origin(self) -> Source:
        """The source itself, where the option is a name: one for each defense."""
        if isinstance(self.source, Source):
            return self.source
        return FromServer() if self.source == "server" else ModelSource()

    def backward(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        inputs: Tensor,
        targets: Any,
        generator: torch.Generator | None = None,
    ) -> Tensors:
        """Add the defended gradient to `.grad`, in place of `loss_fn(model(x), y).backward()`.

        Returns what was added, which is all that a client may send. Unlike a forward pass in
        training mode this leaves the running statistics of BatchNorm as they are. Dropout draws
        from the generator, too. Each call adds noise of its own; see `accumulate`.
        """
        self.check_batch(inputs)
        generator = generator_or_fresh(generator, secure=self.secure)
        message = gradient_of(inputs)(model, loss_fn, targets, seed=seed_from(generator))
        sent = self(message, inputs, generator)
        advance(generator)  # a defense may have drawn nothing: the next call must differ
        add_to_grad(model, sent)
        return sent

    def accumulate(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        generator: torch.Generator | None = None,
        *,
        reduction: str | None = None,
    ) -> Accumulation:
        """Several micro-batches in one optimizer step, with one draw of noise for all of them::

            with defense.accumulate(model, loss_fn) as step:
                for inputs, targets in micro_batches:
                    step.add(inputs, targets)
            optimizer.step()

        When the block ends, `.grad` gets Σ_k n_k g_k / n over micro-batches of n_k examples for a
        loss that is a mean (do not divide it), or Σ_k g_k for a sum, defended as one message: the
        shape is that of the whole. Without a defense this is the gradient of one large batch, but
        that layers which mix examples (BatchNorm in training mode) and dropout see micro-batches. A
        loss that is neither a mean nor a sum over examples is refused, and so are class weights and
        ignored targets in a mean.

        Afterwards `step.sent` is what was added. If the block raises, nothing is added to `.grad`,
        and nothing is kept of it. The weights should not change in the block. Whether the loss is a
        mean or a sum is found out, unless `reduction` says it.
        """
        self.check_accumulates()
        return Accumulation(self, model, loss_fn, generator, reduction)

    def check_accumulates(self) -> None:
        """Require a step of `observe` and `mechanism` alone, so that micro-batches can be added."""
        if self.about.whole:
            raise TypeError(
                "A defense to accumulate should send the message that it gets. Found"
                f" {type(self).__name__}, which {self.about.whole}. Use it by itself."
            )
        if type(self).respond is not Defense.respond:
            raise TypeError(
                "A defense to accumulate should have no `respond` of its own: it has to observe,"
                f" and to make a mechanism. Found one in {type(self).__name__}. Put it into"
                " `observe` and `mechanism`."
            )
        self._check_given("to accumulate")

    def _check_given(self, purpose: str) -> None:
        if type(self).given is not Defense.given:
            raise TypeError(
                f"A defense {purpose} should look at moments only. Found {type(self).__name__},"
                " which looks at the message itself. Call it on one batch."
            )

    def check_batch(self, inputs: Tensor) -> None:
        """Require a batch that it can defend."""
        check_inputs(inputs, tokens=gradient_of(inputs).takes_tokens)

    def prepared(self, message: Message) -> Message:
        """What its mechanism is applied to, which bounds and attacks look at: here the message."""
        return message

    def seen_in(self: Own, sent: Tensors) -> Own:
        """The defense whose `prepared` knows the choices that can be read off what was sent."""
        return self

    def pruned_limits(self, sent: Tensor, pruned: Tensor, sensitivity: Tensor | None) -> Tensor:
        """τ_i with |g_i| ≤ τ_i for each pruned entry; infinite where pruning tells nothing of g_i.

        Args:
            sent: What was sent, in one row, with at least one entry that was not pruned.
            pruned: Which of its entries were pruned.
            sensitivity: √E‖∇g_i‖² at an attacker's estimate, where the defense looks at it.
        """
        return torch.full_like(sent, torch.inf)

    def state_dict(self) -> dict[str, Any]:
        """What is kept from one step to the next, here by its source: tensors, numbers and text."""
        return self.origin.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        self.origin.load_state_dict(state)

    def reset(self) -> None:
        """Forget everything that `state_dict` holds, as for a new model."""
        self.origin.reset()
        if self.state_dict():
            raise TypeError(
                "A defense that remembers something should have a method `reset`. Found none in"
                f" {type(self).__name__}, whose state has the keys {sorted(self.state_dict())}."
            )

    def without_memory(self: Own) -> Own:
        """The defense as anyone can set it up; a shape that the server sent stays: all know it."""
        copied = deepcopy(self)
        if self.about.source != "server":
            copied.reset()
        return copied


def check_source(defense: Defense) -> None:
    """Require a source that a defense can take shapes from."""
    source = defense.source
    if not isinstance(source, Source):
        check_choice(source, "source", ("model", "private", "server"))
    if not isinstance(source, str) or source == "server":
        defense.origin.check(defense.about.needs)


def checked_values(message: Message, inputs: Tensor) -> Tensors:
    """The message's values; what is wrong with them is an error."""
    check_inputs(inputs, tokens=takes_tokens(message))
    with explained(message, inputs):
        values = values_of(message, inputs)
    check_values(values, "message(inputs)")
    check_finite_message(message, inputs, values)
    return values


def words_of(name: str) -> str:
    """The words of a class's name, as "my own noise" of MyOwnNoise, or "QSGD noise"."""
    words = re.findall(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z0-9]+|[A-Z]", name)
    return " ".join(w if len(w) > 1 and w.isupper() else w.lower() for w in words) or name


def _options(defense: object) -> Any:
    """What tells its mechanisms from others'; objects by identity."""
    if not isinstance(defense, Defense) or not is_dataclass(defense):
        return id(defense)
    own: list[Any] = [type(defense)]
    for option in (getattr(defense, f.name) for f in fields(defense) if f.name != "source"):
        plain = isinstance(option, (bool, int, float, str, type(None)))
        own.append(option if plain else _options(option))
    return tuple(own)

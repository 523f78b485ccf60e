"""The base class of all defenses."""

from abc import ABC
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._checks import check_inputs, check_tensor
from gradveil._random import advance, generator_or_fresh, seed_from
from gradveil._typing import Tensors
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import (
    LossFunction,
    Message,
    check_message,
    gradient_of,
)
from gradveil.plans import model_moments
from gradveil.sensitivity import Estimator, Moments, measure_with_values

from ._defended import Defended
from ._identity import Identity
from ._micro_batches import Accumulation, Observer, add_to_grad, checked_values, observe_values


class Defense(Identity, ABC):
    """A pure, deterministic map from Moments to the Mechanism that is applied to the message.

    A new defense is one small file: implement `plan`, and its bound, its utility and its strongest
    attacker come for free. One that is no mechanism overrides `respond` instead, and clients,
    audits and attacks all see what that sends. `__call__` only returns what `respond` sends: a
    subclass with a `__call__` of its own is refused when it is defined, because one of the two
    would be ignored. A defense that remembers something has `state_dict`, `load_state_dict` and
    `reset`.
    """

    estimator: Estimator | str = "auto"
    """How the sensitivities are measured when the defense is called on a message."""

    granularity: str = "parameter"
    """At "layer", "auto" measures only what one level per tensor needs."""

    plan_from: str = "model"
    """What the plan is made from when the defense is called on a message: "model" (synthetic
    examples, so that nothing of the private batch goes into it) or "private" (the batch itself,
    the paper's form). A plan from the private batch tells who was in it, at any noise."""

    secure: bool = False
    """Whether noise without a given generator has to come from a `SecureGenerator`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__call__ is not Defense.__call__:
            raise TypeError(
                "A defense should have no `__call__` of its own: what it returns is `respond(...)"
                f".sent`. Found one in {cls.__name__}. Override `respond`, which returns"
                " Defended(values, mechanism, sent); the mechanism may be `None`."
            )

    @property
    def needs_sensitivities(self) -> bool:
        """Whether `plan` looks at the sensitivities; if not, none are measured."""
        return True

    @property
    def has_target_error(self) -> bool:
        """Whether an error is to be guaranteed: then sensitivities are measured on all examples."""
        return False

    @property
    def reads_moments(self) -> bool:
        """Whether `plan` looks at the numbers in the moments, not only at names and shapes."""
        return True

    @property
    def plan_is_private(self) -> bool:
        """Whether its mechanism depends on the private batch, and so tells of it.

        A subclass with an `observe` or a `respond` of its own counts as private until it says
        otherwise: nobody else knows what it looks at.
        """
        reads = self.plan_from == "private" and self.reads_moments
        return reads or self.steps_unlike(Defense)

    @property
    def needs_curvature(self) -> bool:
        """Whether `plan` looks at squared gradients of single examples, which are then measured."""
        return False

    @property
    def plan_varies(self) -> bool:
        """Whether its plan changes with the inputs, so that an attacker plans again on the way.

        Magnitude pruning's does not count: which entries were cut shows in the message.
        """
        return self.plan_is_private

    def pruned_limits(self, sent: Tensor, pruned: Tensor, sensitivity: Tensor | None) -> Tensor:
        """τ_i with |g_i| ≤ τ_i for each pruned entry; infinite where pruning tells nothing of g_i.

        Args:
            sent: What was sent, in one row, with at least one entry that was not pruned.
            pruned: Which of its entries were pruned.
            sensitivity: √E‖∇g_i‖² at an attacker's estimate, where the defense looks at it.
        """
        return torch.full_like(sent, torch.inf)

    def plan(self, moments: Moments) -> AnyMechanism:
        """The mechanism for a message with these moments."""
        raise TypeError(
            "A defense should have a method `plan` where a mechanism is asked for. Found none in"
            f" {type(self).__name__}. Implement it; a defense that only has a `respond` of its own"
            " can be called, audited and attacked, but it has no bound and no adaptive attack."
        )

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """One defended step: measure, plan and apply.

        Clients, audits, attacks and studies all take this step; a defense of another kind
        overrides it.

        Args:
            message: From inputs to what would be sent.
            inputs: The private batch.
            generator: For probes and noise; a fresh one if `None`.
        """
        check_message(message)
        check_tensor(inputs, "inputs")
        generator = generator_or_fresh(generator, secure=self.secure)
        values, moments = self.observe(message, inputs.detach(), generator)
        mechanism = self.plan(moments)
        del moments  # two tensors of the size of the message that are not needed any more
        return Defended(values, mechanism, mechanism.apply(values, generator))

    def __call__(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Tensors:
        """What the client sends, by parameter name: `respond(...).sent`."""
        return self.respond(message, inputs, generator).sent

    def state_dict(self) -> dict[str, Any]:
        """What it remembers from one step to the next: tensors, numbers and text; here nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        if state:
            raise ValueError(
                f"Parameter `state` should be empty: {type(self).__name__} remembers nothing. Found"
                f" the keys {sorted(state)}. Load it into the defense that it came from."
            )

    def reset(self) -> None:
        """Forget everything that `state_dict` holds, as for a new model."""
        if self.state_dict():
            raise TypeError(
                "A defense that remembers something should have a method `reset`. Found none in"
                f" {type(self).__name__}, whose state has the keys {sorted(self.state_dict())}."
            )

    def without_memory(self) -> "Defense":
        """The defense as anyone can set it up; what it remembers stays with the client."""
        if not self.state_dict():
            return self
        copied = deepcopy(self)
        copied.reset()
        return copied

    def check_plans(self, purpose: str) -> None:
        """Require a step that is made of `observe` and `plan`: no `respond` of its own."""
        if type(self).respond is not Defense.respond:
            raise TypeError(
                f"A defense {purpose} should have no `respond` of its own: it has to observe and to"
                f" plan. Found one in {type(self).__name__}. Put it into `observe` and `plan`."
            )

    def prepared(self, message: Message) -> Message:
        """What the mechanism is applied to: here the message itself.

        A defense that first makes something else of it, such as clipping its examples, says so
        here: bounds and attacks then look at that.
        """
        return message

    def moments_of(self, values: Tensors, inputs: Tensor) -> Moments:
        """What `plan` needs of these values, where it needs no sensitivities."""
        return Moments.of_values(values, inputs.numel())

    def moments_at(self, message: Message, values: Tensors, inputs: Tensor) -> Moments:
        """The same for an attacker who plans at its own estimate of the inputs."""
        return self.moments_of(values, inputs)

    def check_batch(self, inputs: Tensor) -> None:
        """Require a batch that it can defend."""
        check_inputs(inputs, tokens=gradient_of(inputs).takes_tokens)

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """The message's values, and the moments to plan from: its own only for a private plan."""
        if not self.plan_is_private:
            if not self.reads_moments:
                return observe_values(message, inputs)
            values = checked_values(message, inputs)
            return values, self.public_moments(message, inputs, generator)
        if self.needs_sensitivities:
            few = self.granularity == "layer" and not self.has_target_error
            estimator = "layers" if few and self.estimator == "auto" else self.estimator
            return measure_with_values(
                message,
                inputs,
                estimator,
                generator=generator,
                judged=self.has_target_error,
                examples=self.needs_curvature,
            )
        return observe_values(message, inputs)

    def public_moments(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> Moments:
        """The moments of a plan that is not private; here from the model alone.

        Of the inputs and the message's targets nothing but shape, type and place may be used.
        """
        self.check_amount_is_known()
        return model_moments(message, inputs, generator, curvature=self.needs_curvature)

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
        from the generator, too. Each call adds noise of its own: for several micro-batches in one
        step use `accumulate`.
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
        """Several micro-batches in one optimizer step, with one draw of noise for all of them.

        Use it in place of several calls of `backward`, each of which would add its own noise::

            with defense.accumulate(model, loss_fn) as step:
                for inputs, targets in micro_batches:
                    step.add(inputs, targets)
            optimizer.step()

        When the block ends, `.grad` gets Σ_k n_k g_k / n over micro-batches of n_k examples for a
        loss that is a mean (do not divide it), or Σ_k g_k for a sum, defended as one message: the
        plan comes from the moments of the whole. Without a defense this is the gradient of one
        large batch. Where layers mix examples (BatchNorm in training mode), each micro-batch is
        taken by itself, as in plain PyTorch, and dropout draws anew for each; the plan is right for
        that gradient, too. A loss that is neither a mean nor a sum over examples is refused, and
        so are class weights and ignored targets in a mean.

        Afterwards `step.sent` is what was added. If the block raises, nothing is added to `.grad`,
        and the defense remembers nothing of it. A defense with a `respond` of its own cannot be
        accumulated.

        Args:
            model: Its weights should not change in the block.
            loss_fn: Maps (outputs, targets) to one number.
            generator: For probes, noise and dropout; a fresh one if `None`.
            reduction: "mean" or "sum"; found out by itself if `None`.
        """
        self.check_plans("to accumulate")
        return Accumulation(self, model, loss_fn, generator, reduction=reduction)

    def observer(self) -> Observer:
        """What puts the micro-batches of one step together; a defense with a memory has its own."""
        return Observer(self)

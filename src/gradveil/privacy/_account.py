"""The account of what a training run has spent."""

from dataclasses import dataclass, field, fields
from typing import Any

from gradveil._checks import (
    WrongValue,
    check_choice,
    check_count,
    check_flag,
    check_not_negative,
    check_positive,
)

from ._releases import (
    NEIGHBOURS,
    check_delta,
    check_sample_rate,
    epsilon_after,
    epsilon_on_grid,
)


class BudgetError(WrongValue):
    """A step that would spend more than the budget."""


@dataclass(eq=False)
class PrivacyAccount:
    """ε(δ) of a run, step by step, and its budget.

    Each step releases N(Σ_b g_b, z² C² I) with ‖g_b‖ ≤ C (`epsilon_after`). A release that was not
    clipped, or noised less, is not covered: the account believes what it is told.

    Args:
        sample_rate: q, the probability with which each example (or client) takes part in a step,
            drawn anew and independently (`poisson_sample`); 1 if all take part in all steps.
            Batches of a fixed size, or a shuffled data set, are not this: account for them with 1
            and neighbours="replace-one", because an example that is added there pushes another one
            out, and the sum moves by 2C. Add-remove would understate ε.
        unit: What one more or less of is hidden: an "example" (FedSGD), or a "client" (FedAvg, its
            update clipped).
        budget: The largest ε(δ) that may be spent; `None` for no limit.
        neighbours: "add-remove", "zero-out" or "replace-one": `epsilon_after` says which is right.
        grid: Whether the noise is discrete, on a grid, as that of `PrivateNoise` is unless it says
            otherwise: ε is then a few millionths larger (`epsilon_on_grid`), for up to 10¹² numbers
            sent.

    >>> account = PrivacyAccount(noise_multiplier=4.0, sample_rate=1.0, delta=1e-5, budget=4.5)
    >>> account.step(16)
    >>> round(account.epsilon(), 3), account.would_exceed()
    (4.377, True)
    >>> account.sampling, account.hides
    ('none: every example in every step', 'one example more or less')
    """

    noise_multiplier: float
    sample_rate: float
    delta: float
    unit: str = "example"
    budget: float | None = None
    neighbours: str = "add-remove"
    grid: bool = True
    steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_not_negative(self.noise_multiplier, "noise_multiplier")
        check_sample_rate(self.sample_rate)
        check_delta(self.delta)
        check_choice(self.unit, "unit", ("example", "client"))
        check_choice(self.neighbours, "neighbours", tuple(NEIGHBOURS))
        if self.budget is not None:
            check_positive(self.budget, "budget")
        check_flag(self.grid, "grid")

    @property
    def sampling(self) -> str:
        """How examples get into a step, in words."""
        if self.sample_rate == 1:
            return f"none: every {self.unit} in every step"
        return f"Poisson: each {self.unit} with probability {self.sample_rate:g}, independently"

    @property
    def hides(self) -> str:
        """By what two data sets differ that (ε, δ) makes alike, in words."""
        return NEIGHBOURS[self.neighbours].format(unit=self.unit)

    def epsilon(self, more: int = 0) -> float:
        """ε(δ) of the steps so far, and of so many more."""
        check_count(more, "more", least=0)
        steps = self.steps + more
        epsilon_of = epsilon_on_grid if self.grid else epsilon_after
        return epsilon_of(
            self.noise_multiplier, self.sample_rate, steps, self.delta, self.neighbours
        )

    def would_exceed(self, n: int = 1) -> bool:
        """Whether `n` more steps would spend more than the budget."""
        check_count(n, "n")
        return self.budget is not None and self.epsilon(n) > self.budget

    def allowed(self, most: int) -> int:
        """How many more steps the budget allows, `most` at the most."""
        check_count(most, "most", least=0)
        low, high = 0, most
        while low < high:  # ε grows with the steps
            middle = (low + high + 1) // 2
            low, high = (low, middle - 1) if self.would_exceed(middle) else (middle, high)
        return low

    def step(self, n: int = 1) -> None:
        """Count `n` more steps, before anything is released; none where the budget is too small."""
        if self.would_exceed(n):
            epsilon = f"ε would be {self.epsilon(n):.4g} at δ = {self.delta:g}"
            raise BudgetError(
                "budget",
                f"allow {n} more than {self.steps} steps",
                f"that {epsilon}, above `budget = {self.budget}`",
                "Stop here, or start again with a larger `noise_multiplier`.",
            )
        self.steps += n

    def describe(self) -> dict[str, Any]:
        """What the account is about, as plain values."""
        own = {field.name: getattr(self, field.name) for field in fields(self)[:-1]}
        return {**own, "sampling": self.sampling, "hides": self.hides}

    def state_dict(self) -> dict[str, Any]:
        """The state to continue from, as plain values."""
        return {**self.describe(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` of an equal account returned."""
        expected = self.describe()
        found = {name: value for name, value in state.items() if name != "steps"}
        if found != expected or "steps" not in state:
            differing = sorted(k for k in {*found, *expected} if found.get(k) != expected.get(k))
            wanted, others = "come from an account of the same releases", differing or ["steps"]
            advice = "Make the account as it was made."
            raise WrongValue("state", wanted, f"other values of {others}", advice)
        check_count(state["steps"], "steps", least=0)
        self.steps = state["steps"]

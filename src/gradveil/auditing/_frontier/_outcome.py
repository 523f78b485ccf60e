"""What an audit over strengths found: curves of leakage against loss, and the answers."""

from dataclasses import dataclass
from typing import Any

from gradveil.scoring import Interval

from .._told_apart import ToldApart


@dataclass(frozen=True)
class Leak:
    """What can be recovered from messages at one moment of the training."""

    round: int
    """0: the model as it was given; later ones: after so many rounds under this defense."""
    attack: str
    """The strongest of those that were run; "" if none gave a result."""
    knows_defense: bool
    error: Interval | None
    """Its squared error over that of a blind guess: 0 is a copy, 1 is nothing learned."""
    psnr: Interval | None
    """`None` where inputs are no images."""
    told_apart: ToldApart | None
    """What the exact attacker reached; `None`: not measured, or no likelihood."""
    pictures: tuple[str, ...] = ()
    """The first batch, rebuilt by the strongest attack, as PNG files in base64."""
    copies: int = 0
    """Examples that were rebuilt as near copies, by any attack that was run."""
    examples: int = 0


@dataclass(frozen=True)
class Point:
    """A defense at one strength."""

    defense: str
    """Its specification."""
    amount: float | None
    """The number that was varied, as a scale; `None` for a defense that has none."""
    leaks: tuple[Leak, ...]
    """By round, the model as given first."""
    loss: Interval | None
    """On examples that were not trained on, after the training; `None`: not trained. The mean is
    infinite where training diverged."""
    accuracy: Interval | None
    """The share of right classes there; `None` where targets are no classes."""
    extra_loss: Interval | None = None
    """The loss over that of the undefended training with the same batches, minus 1: 0.05 is 5 %
    more."""
    bound: float | None = None
    """The Gaussian reference error per entry, in normalised units (its trace form)."""
    bound_holds: bool = False
    """Whether its assumptions on the model were found to be met."""
    epsilon: float | None = None
    """ε(δ) over the stated rounds; `None`: no (ε, δ)."""


@dataclass(frozen=True)
class Curve:
    """A defense over strengths, from the weakest to the strongest."""

    name: str
    """As "optimal noise"."""
    family: str
    amount_name: str
    """What was varied, as "scale"; "" if nothing."""
    plan: str
    """What its levels are made from: "public", "model", "private" ...; "" for a defense that plans
    nothing."""
    points: tuple[Point, ...]
    dominated_by: str = ""
    """The name of another that loses less at every leakage; "" where there is none."""


@dataclass(frozen=True)
class Answer:
    """The setting for one goal, or that no defense reaches it."""

    title: str
    """As "Nothing recognisable", or the goal as it was given."""
    goals: tuple[str, ...]
    """As they can be given again: "psnr<=15"."""
    reached: bool
    sentence: str
    """The answer for a reader without the theory."""
    name: str = ""
    """Of the defense; "" if there is no setting."""
    defense: str = ""
    """Its specification."""
    python: str = ""
    """A line to paste."""
    toml: str = ""
    """A line to paste into a configuration."""
    rests_on: str = ""
    """Which attacks, batches and intervals."""
    not_promised: str = ""
    """What the answer does not say."""
    shortfall: str = ""
    """By how much it is missed, where it is not reached."""
    equal: tuple[str, ...] = ()
    """Other defenses that reach it and whose loss is not told apart from this one's."""


@dataclass(frozen=True)
class Frontier:
    """Everything that was measured over strengths, and the answers."""

    undefended: Point
    curves: tuple[Curve, ...]
    answers: tuple[Answer, ...]
    rounds: int
    """Of the training."""
    clients: int
    training_seeds: int
    optimizer: str
    """As "adam, rate 0.001"."""
    loss_before: float | None
    moments: tuple[int, ...]
    """The rounds at which models were attacked."""
    guess: str
    """What a blind guess is, in words."""
    guess_psnr: float | None
    trained_on: str = "public"
    """"public" examples, or the "audited" ones where there are too few."""
    delta: float = 1e-5
    epsilon_rounds: int = 100
    """For which ε is stated."""

    def points(self) -> list[tuple[Curve, Point]]:
        """Every point with its curve."""
        return [(curve, point) for curve in self.curves for point in curve.points]

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each moment of each point, the undefended message first."""
        from ._rows import point_rows

        return point_rows(self)

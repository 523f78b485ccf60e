"""What a private defense promises: (ε, δ), and how often one of N can be recognised."""

from dataclasses import dataclass
from typing import Any

from gradveil._checks import check_count
from gradveil.defenses import Defense, PrivateNoise
from gradveil.privacy import (
    check_delta,
    check_sample_rate,
    epsilon_after,
    epsilon_on_grid,
    recognition_bound,
)


@dataclass(frozen=True)
class Releases:
    """The releases that an audit states ε for: one message, and a planned number of rounds."""

    rounds: int = 100
    delta: float = 1e-5
    sample_rate: float = 1.0
    """Of Poisson sampling over the rounds; 1: each example (or client) is in all of them."""

    def __post_init__(self) -> None:
        check_count(self.rounds, "rounds")
        check_delta(self.delta)
        check_sample_rate(self.sample_rate)


USUAL = Releases()


@dataclass(frozen=True)
class PrivacyResult:
    """ε(δ) and recognition of a defense that clips, for any attacker and any data.

    One more or less of `unit` is hidden. Recognition is the largest chance to pick the right one of
    `candidates`, for an attacker to whom all are alike beforehand, and who knows everything else.
    """

    unit: str
    delta: float
    epsilon: float
    """Of one message that the example (or client) is in."""
    recognition: float
    """With one such message."""
    rounds: int
    sample_rate: float
    epsilon_rounds: float
    """Of all rounds."""
    recognition_rounds: float
    """With all rounds."""
    candidates: int


def privacy_of(defense: Defense, releases: Releases, candidates: int) -> PrivacyResult | None:
    """What the accountant says; `None` for a defense without (ε, δ)."""
    if not isinstance(defense, PrivateNoise):
        return None
    epsilon_of = epsilon_on_grid if defense.grid else epsilon_after
    z, rate, rounds = defense.noise_multiplier, releases.sample_rate, releases.rounds
    return PrivacyResult(
        unit=defense.unit,
        delta=releases.delta,
        epsilon=epsilon_of(z, 1.0, 1, releases.delta),
        recognition=recognition_bound(1 / candidates, z, 1.0, 1),
        rounds=rounds,
        sample_rate=rate,
        epsilon_rounds=epsilon_of(z, rate, rounds, releases.delta),
        recognition_rounds=recognition_bound(1 / candidates, z, rate, rounds),
        candidates=candidates,
    )


def privacy_columns(privacy: PrivacyResult | None) -> dict[str, Any]:
    """The columns of a flat table; `None` in all of them without (ε, δ)."""
    names = ("delta", "epsilon", "recognition", "rounds", "epsilon_rounds", "recognition_rounds")
    return {f"privacy_{name}": getattr(privacy, name, None) for name in names}

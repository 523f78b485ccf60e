"""The results of an audit as frozen dataclasses, to JSON and back without loss."""

import dataclasses
import json
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from gradveil._checks import check_count
from gradveil._runner import Stop
from gradveil.attacks import ThreatModel
from gradveil.defenses import Defense, PrivateNoise
from gradveil.federated import Federation
from gradveil.privacy import (
    PrivacyAccount,
    check_delta,
    check_sample_rate,
    epsilon_after,
    epsilon_on_grid,
    recognition_bound,
)
from gradveil.scoring import Interval


def restore(kind: Any, value: Any) -> Any:
    """A value of plain JSON as the annotated type."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (kind,) = (part for part in parts if part is not NoneType)
        return None if value is None else restore(kind, value)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: restore(hints[name], part) for name, part in value.items()})  # type: ignore[operator]
    if origin is tuple:
        repeated = len(parts) == 2 and parts[1] is Ellipsis
        kinds = [parts[0]] * len(value) if repeated else list(parts)
        return tuple(restore(k, part) for k, part in zip(kinds, value, strict=True))
    return value


def fields_of_results() -> dict[str, list[str]]:
    """By the names of their classes."""
    kinds = {name: kind for name, kind in globals().items() if dataclasses.is_dataclass(kind)}
    return {name: [part.name for part in dataclasses.fields(kind)] for name, kind in kinds.items()}


def columns(value: Any, prefix: str = "") -> dict[str, Any]:
    """A result as one flat row without what there are several of; an interval is three numbers."""
    row: dict[str, Any] = {}
    for name, part in vars(value).items():
        if isinstance(part, Interval):
            row |= {prefix + name: part.mean, f"{prefix}{name}_low": part.low}
            row[f"{prefix}{name}_high"] = part.high
        elif dataclasses.is_dataclass(part):
            row |= columns(part, f"{prefix}{name}_")
        elif not isinstance(part, (tuple, dict)):
            row[f"{prefix}{name}"] = part
    return row


@dataclass(frozen=True)
class ToldApart:
    """How often the right one of N candidates was picked, given the rest of the batch."""

    candidates: int
    trials: int
    rate: Interval
    """The share of trials in which it was the most likely one; chance is 1/N."""
    bits: Interval
    """What a message tells in the mean: log₂ N minus the posterior's entropy."""
    one_class: bool = True
    """Whether all candidates had the same label."""


@dataclass(frozen=True)
class Releases:
    """The releases that an audit states ε for: one message, and a planned number of rounds."""

    rounds: int = 100
    delta: float = 1e-5
    sample_rate: float = 1.0
    """Of Poisson sampling over the rounds, a public number; 1: each example (or client) is in all
    of them."""

    def __post_init__(self) -> None:
        check_count(self.rounds, "rounds")
        check_delta(self.delta)
        check_sample_rate(self.sample_rate)


@dataclass(frozen=True)
class PrivacyResult:
    """ε(δ) and recognition of a defense that clips, for any attacker and any data.

    What is hidden of `unit` is said by `neighbours` (`epsilon_after`), in words by `hides`; δ and
    the rounds are those of the `Releases`. The messages and trainings of an audit have seeds: ε is
    that of the same defense with secret noise. Recognition is the largest chance to pick the right
    one of `candidates`, for one to whom all are alike beforehand, and who knows everything else.
    """

    unit: str
    epsilon: float
    """Of one message that the example (or client) is in, as `recognition`."""
    recognition: float
    epsilon_rounds: float
    recognition_rounds: float
    candidates: int
    neighbours: str = "zero-out"
    """"add-remove" where the defense has a fixed `batch_size`; else its divisor tells how many
    examples there are, and one is replaced by an empty one, as a client always is: everybody sees
    who sends."""

    @property
    def hides(self) -> str:
        """By what two data sets differ that (ε, δ) makes alike, in words."""
        return PrivacyAccount(1.0, 1.0, 0.1, self.unit, neighbours=self.neighbours).hides


CANDIDATES = 32
"""How many there are to choose from."""


def privacy_of(
    defense: Defense, releases: Releases, candidates: int = CANDIDATES
) -> PrivacyResult | None:
    """What the accountant says; `None` for a defense without (ε, δ)."""
    if not isinstance(defense, PrivateNoise):
        return None
    epsilon_of = epsilon_on_grid if defense.grid else epsilon_after
    z, rounds = defense.noise_multiplier, releases.rounds
    hidden_count = defense.unit == "example" and defense.batch_size is not None
    # a divisor made from who was drawn tells how many were; and everybody sees which client sends
    rate = releases.sample_rate if hidden_count else 1.0
    return PrivacyResult(
        unit=defense.unit,
        epsilon=epsilon_of(z, 1.0, 1, releases.delta),
        recognition=recognition_bound(1 / candidates, z, 1.0, 1),
        epsilon_rounds=epsilon_of(z, rate, rounds, releases.delta),
        recognition_rounds=recognition_bound(1 / candidates, z, rate, rounds),
        candidates=candidates,
        neighbours="add-remove" if hidden_count else "zero-out",
    )


@dataclass(frozen=True)
class Leak:
    """What can be recovered from messages at one moment of the training."""

    round: int
    """0: the model as it was given; later ones: after so many rounds under this defense."""
    attack: str
    """The strongest of those that were run; "" if none gave a result."""
    error: Interval | None
    """Its squared error over that of a blind guess: 0 is a copy, 1 no further than it. Of the best
    mix of both, so that noise in what was rebuilt does not count as protection."""
    psnr: Interval | None
    """`None` where inputs are no images."""
    told_apart: ToldApart | None
    """What the exact attacker reached; `None`: not measured, or no likelihood."""
    pictures: tuple[str, ...] = ()
    """The first batch, rebuilt by the strongest attack, as PNG files in base64."""
    copies: int = 0
    """Examples that were rebuilt as near copies, by any attack that was run."""
    examples: int = 0
    gain: Interval | None = None
    """How many decibels the best attack's error is below a blind guess's, example by example."""
    works: bool = False
    """Whether that is a clear margin (`AgainstGuess`). Only if it is so without a defense is a
    failed attack on a defended message a merit of the defense."""

    @property
    def picked(self) -> Interval | None:
        """How often the exact attacker picks the right one."""
        return self.told_apart.rate if self.told_apart else None


@dataclass(frozen=True)
class Point:
    """A defense, by its specification, at one strength."""

    defense: str
    amount: float | None
    """The number that was varied, as a scale; `None` for a defense that has none."""
    leaks: tuple[Leak, ...]
    """By round, the model as given first."""
    loss: Interval | None
    """On examples that were not trained on, after the training; its interval is that of the
    difference to the undefended one. `None`: not trained; infinite: diverged."""
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
    """ε(δ) over the stated rounds, of a training with secret noise (that of an audit has seeds, and
    protects nobody) and one example or client replaced by an empty one; `None`: no (ε, δ)."""

    @property
    def strongest(self) -> Leak | None:
        """The moment at which the strongest attack left the least error."""
        known = [leak for leak in self.leaks if leak.error is not None]
        return min(known, key=lambda leak: leak.error.mean if leak.error else 0.0, default=None)

    @property
    def told_apart(self) -> ToldApart | None:
        """At the moment at which candidates are told apart most often."""
        known = [leak.told_apart for leak in self.leaks if leak.told_apart]
        return max(known, key=lambda told: told.rate.mean, default=None)


@dataclass(frozen=True)
class Curve:
    """A defense over strengths, from the weakest to the strongest."""

    name: str
    amount_name: str
    """What was varied, as "scale"; "" if nothing."""
    plan: str
    """What its levels are made from: "public", "model", "private" ...; "" for a defense that plans
    nothing."""
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Answer:
    """The setting for some goals at once, or that no defense reaches them."""

    title: str
    """As "Blurred at most", or the goals as they were given."""
    goals: tuple[str, ...]
    """As they can be given again: "psnr<=15"."""
    reached: bool
    sentence: str
    """The answer for a reader without the theory; by how much it is missed, where it is."""
    name: str = ""
    """Of the defense, as its curve's; "" if there is no setting."""
    defense: str = ""
    python: str = ""
    rests_on: str = ""
    not_promised: str = ""
    equal: tuple[str, ...] = ()
    """Other defenses that reach it and whose loss is not told apart from this one's."""


@dataclass(frozen=True)
class Frontier:
    """Everything that was measured over strengths, and the answers."""

    undefended: Point
    curves: tuple[Curve, ...]
    answers: tuple[Answer, ...]
    loss_before: float | None
    moments: tuple[int, ...]
    """The rounds at which models were attacked."""
    guess: str
    """What a blind guess is, in words."""
    guess_psnr: float | None
    trained_on: str = "public"
    """"public" examples, or the "audited" ones where there are too few."""

    @property
    def plain(self) -> Curve:
        """The undefended message, as a curve of one point."""
        return Curve("no defense", "", "", (self.undefended,))

    def points(self) -> list[tuple[Curve, Point]]:
        """Every point with its curve, the undefended one first."""
        return [(curve, point) for curve in (self.plain, *self.curves) for point in curve.points]

    @property
    def main(self) -> Answer | None:
        """The first answer that is reached; the first of all if none is; `None` without any."""
        reached = (answer for answer in self.answers if answer.reached)
        return next(reached, next(iter(self.answers), None))

    def setting(self, answer: Answer) -> tuple[Curve, Point] | None:
        """The measured point of an answer with its curve."""
        wanted = answer.name, answer.defense
        return next((p for p in self.points() if (p[0].name, p[1].defense) == wanted), None)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each moment at which a point was attacked, the undefended one first."""
        rows = []
        for curve, point in self.points():
            titles = "; ".join(a.title for a in self.answers if a.defense == point.defense)
            row = {**columns(curve), **columns(point), "answers": titles}
            rows += [row | columns(leak) for leak in point.leaks] or [row]
        return rows


@dataclass(frozen=True)
class BoundResult:
    """A lower bound on every attacker's mean error for data of that prior, where it `holds`: for
    real data a Gaussian reference error, not a guarantee."""

    method: str
    """"full" or "trace"."""
    prior: str
    mse: float
    """Per input entry, in normalised units, for errors after matching, as attacks have them."""
    mse_standard_error: float
    trace_mse: float
    """The trace form, for which the defenses are optimal; equal to `mse` if that is the method."""
    mse_decibels: float | None
    """`mse` in pixel units as a PSNR in dB; `None` without images. It is that of a mean error: the
    mean of PSNRs, as attacks have it, may be above it."""
    counts_plan: bool
    """Whether it counts what a plan made from the private batch reveals by itself."""
    mse_pixels: float | None = None
    """`mse` in [0, 1] units, the least over channels."""
    batches: int = 1
    """Over how many batches the information was averaged."""
    reason: str = ""
    """Why it is no guarantee for this model and defense; empty where it is one."""
    mse_interval: tuple[float, float] | None = None
    """Of `mse`, 95 %, from the scatter of the batches; `None` at one batch."""
    unmatched_mse: float | None = None
    """The same place by place."""

    @property
    def holds(self) -> bool:
        """Whether its assumptions on the message were found to be met."""
        return not self.reason


@dataclass(frozen=True)
class RunResult:
    """One attack on one batch with one seed; one value for each image, in the truth's order."""

    batch: int
    seed: int
    status: str
    seconds: float
    mse: tuple[float, ...]
    """Of tokens the share that is wrong: half the squared distance of one-hot rows."""
    mse_pixels: tuple[float, ...]
    psnr: tuple[float, ...] | None
    ssim: tuple[float, ...] | None
    label_accuracy: float | None
    pictures: tuple[str, ...] = ()
    """The matched reconstructions as PNG files in base64, for the first batch and seed only."""
    accuracy: tuple[float, ...] | None = None
    """The share of tokens, or of a table's columns, that were found; `None` for other inputs."""
    mixed: tuple[float, ...] = ()
    """`mse_pixels` of the best mix of the reconstruction and a blind guess, with one weight for the
    batch: noise in a reconstruction is then no protection. Empty for tokens."""


@dataclass(frozen=True)
class AttackResult:
    """One attack, by its specification, on one defense, over all batches and seeds."""

    attack: str
    knows_defense: bool
    mse: Interval
    mse_pixels: Interval
    psnr: Interval | None
    ssim: Interval | None
    label_accuracy: float | None
    seconds: float
    """In the mean, for one batch."""
    runs: tuple[RunResult, ...]
    accuracy: Interval | None = None


@dataclass(frozen=True)
class LayerResult:
    """What a defense does to one tensor of the message, on the first batch."""

    name: str
    size: int
    noise: float
    """Root mean square of the noise's standard deviations."""
    kept: float
    """The share of entries that is sent."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a defense keeps of a message, and what the theory says of it."""

    utility_first: float | None
    """U1, relative to no defense: the share of the squared gradient that is kept; `None` for a
    defense without a mechanism."""
    utility_second: float | None
    """U2 over the squared norm of the message; 0 without noise; `None` as for U1."""
    bound: BoundResult | None
    """`None`: no guarantee (the defense adds no noise to something that it sends)."""
    no_guarantee: str = ""
    """Why there is no bound, or why it is no guarantee; empty where it is one."""
    formal_privacy: str
    """Which formal guarantee it carries, in words; "none" for most."""


@dataclass(frozen=True, kw_only=True)
class Detail(Promise):
    """All that is measured of a defense without attacks and training."""

    bytes_sent: int
    """For one message; zeros of a pruned one are counted as not sent (4 bytes index each entry)."""
    time_ratio: float
    """Gradient and defense together, over the plain gradient alone."""
    layers: tuple[LayerResult, ...]


@dataclass(frozen=True, kw_only=True)
class DefenseResult(Detail):
    """The results for one defense; loss and plan are those of its point and curve."""

    name: str
    """Short and unique: "optimal noise"."""
    defense: str
    loss: Interval | None
    attacks: tuple[AttackResult, ...]
    verdict: str
    """One sentence for a reader without the theory."""
    plan: str = ""
    told_apart: ToldApart | None = None
    """At the model as given."""
    privacy: PrivacyResult | None = None


@dataclass(frozen=True)
class Setup:
    """What was audited, and how to do it again; fields are those of a subject and its settings."""

    data: str
    model: str
    parameters: int
    input_shape: tuple[int, ...]
    batch_size: int
    batches: int
    seeds: int
    training_seeds: int
    seed: int
    federation: Federation
    threat: ThreatModel
    releases: Releases
    is_image: bool
    device: str
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    weights: str = "as given"
    date: str = ""
    """The day of the audit, as 2026-01-31."""
    task: str = "classification"
    """What the targets are: "classification", "numbers", or "labels" (several for each)."""
    tokens: bool = False


@dataclass(frozen=True)
class AuditResult:
    """The whole audit."""

    setup: Setup
    defenses: tuple[DefenseResult, ...]
    """The undefended message and the settings of the answers in detail; all without goals."""
    frontier: Frontier
    originals: tuple[str, ...] = ()
    """The first batch's images as PNG files in base64."""
    notes: tuple[str, ...] = ()
    """What a reader should know of this run: what was left out, what the bounds do not count."""
    stopped: Stop | None = None
    """Why it ended (Ctrl-C, a time budget) before all was measured; `None`: it is whole."""

    @property
    def can_judge(self) -> bool:
        """Whether the attacks work on this model at all; so it is assumed where none was run."""
        leaks = self.frontier.undefended.leaks
        return not leaks or not leaks[0].attack or leaks[0].works

    def to_json(self) -> str:
        """The result as JSON text, floats exact."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "AuditResult":
        """The result that `to_json` wrote."""
        result: AuditResult = restore(cls, json.loads(text))
        return result

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each defense and attack, as in the table and in results.csv."""
        judge = {"can_judge": self.can_judge}
        pairs = [(defense, attack) for defense in self.defenses for attack in defense.attacks]
        return [columns(defense) | columns(attack) | judge for defense, attack in pairs]

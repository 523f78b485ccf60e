"""The results of an audit as frozen dataclasses, to JSON and back without loss."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gradveil._extras import require
from gradveil.catalog import build_defense, name_of
from gradveil.defenses import Defense
from gradveil.scoring import Interval

from ._frontier import Frontier
from ._privacy import PrivacyResult, privacy_columns
from ._restore import restore
from ._told_apart import ToldApart
from ._undefended import Undefended, undefended_columns

if TYPE_CHECKING:
    import pandas

StopReason = Literal["interrupted", "time budget"]
"""Why an audit ended early: by Ctrl-C, or because its time was over."""


@dataclass(frozen=True)
class BoundResult:
    """A lower bound on every attacker's mean error for data of that prior, where it `holds`: for
    real data a Gaussian reference error, not a guarantee."""

    method: str
    """"full" or "trace"."""
    prior: str
    mse: float
    """Per input entry, in normalised units."""
    mse_standard_error: float
    trace_mse: float
    """The trace form, for which the defenses are optimal; equal to `mse` if that is the method."""
    psnr_ceiling: float | None
    """`mse` in pixel units as a PSNR in dB that no attacker exceeds; `None` without images."""
    counts_plan: bool
    """Whether it counts what a plan made from the private batch reveals by itself."""
    mse_pixels: float | None = None
    """`mse` in [0, 1] units, the least over channels."""
    batches: int = 1
    """Over how many batches the information was averaged."""
    data: str = "audited"
    """"public" or "audited": the examples of these batches."""
    explained: float = 1.0
    """The share of the message's change over a small step that derivatives explain."""
    reason: str = ""
    """Why it is no guarantee for this model and defense; empty where it is one."""
    mse_interval: tuple[float, float] | None = None
    """Of `mse`, 95 %, from the scatter of the batches; `None` at one batch."""

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
    unmatched_mse: tuple[float, ...]
    label_accuracy: float | None
    history: tuple[tuple[int, float], ...] = ()
    """(step, the attack's own cost)."""
    pictures: tuple[str, ...] = ()
    """The matched reconstructions as PNG files in base64, for the first batch and seed only."""
    accuracy: tuple[float, ...] | None = None
    """The share of tokens, or of a table's columns, that were found; `None` for other inputs."""


@dataclass(frozen=True)
class AttackResult:
    """One attack on one defense, over all batches and seeds."""

    attack: str
    """The specification."""
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
    """The share of tokens, or of a table's columns, that were found; `None` for other inputs."""


@dataclass(frozen=True)
class LayerResult:
    """What a defense does to one tensor of the message, on the first batch."""

    name: str
    size: int
    noise: float
    """Root mean square of the noise's standard deviations."""
    kept: float
    """The share of entries that is sent."""


@dataclass(frozen=True)
class TrainingResult:
    """A few steps of defended training from the audited weights, beside undefended ones."""

    steps: int
    loss_before: float
    loss_after: Interval
    loss_after_undefended: float


@dataclass(frozen=True)
class DefenseResult:
    """The results for one defense."""

    name: str
    """A short unique name, "optimal noise"."""
    defense: str
    """The specification with its solved parameters."""
    utility_first: float | None
    """U1, relative to no defense: the share of the squared gradient that is kept; `None` for a
    defense without a mechanism."""
    utility_second: float | None
    """U2 over the squared norm of the message; 0 without noise; `None` as for U1."""
    bound: BoundResult | None
    """`None`: no guarantee (the defense adds no noise to something that it sends)."""
    formal_privacy: str
    """Which formal guarantee it carries, in words; "none" for most."""
    training: TrainingResult | None
    bytes_sent: int
    """For one message; zeros of a pruned one are counted as not sent (4 bytes index each entry)."""
    time_ratio: float
    """Gradient and defense together, over the plain gradient alone."""
    layers: tuple[LayerResult, ...]
    attacks: tuple[AttackResult, ...]
    verdict: str
    """One sentence for a reader without the theory."""
    no_guarantee: str = ""
    """Why there is no bound, or why it is no guarantee; empty where it is one."""
    family: str = ""
    """What it shares with its classical or optimal counterpart, as "noise"; "" if not known."""
    twin: str | None = None
    """The name of its classical counterpart, where it is the optimal form of one."""
    is_undefended: bool = False
    """Whether the message is sent as it is."""
    plan: str = ""
    """What its levels or its mask were made from: "private", "public", "model" ...; "" if from
    nothing."""
    told_apart: ToldApart | None = None
    """How well candidates for one example are told apart; `None`: not measured."""
    privacy: PrivacyResult | None = None
    """ε(δ) and recognition; `None`: no (ε, δ)."""


@dataclass(frozen=True)
class Setup:
    """What was audited, and how to do it again."""

    data: str
    model: str
    parameters: int
    input_shape: tuple[int, ...]
    batch_size: int
    batches: int
    seeds: int
    seed: int
    match: str
    """"scale", "utility" or "error": what is held equal among the defenses."""
    message: str
    """"gradient" or "update"."""
    threat_labels: str
    threat_statistics: bool
    is_image: bool
    device: str
    command: str = ""
    threat_mechanism: str = "known"
    """What attacks that use the defense are told of it: "known", "realised" or "unknown"."""
    equal: str = ""
    """What was held equal among the defenses, in words with numbers."""
    versions: dict[str, str] = field(default_factory=dict)
    weights: str = "as given"
    """"untrained", "as given", or the file that they came from."""
    date: str = ""
    """The day of the audit, as 2026-01-31."""
    task: str = "classification"
    """What the targets are: "classification", "numbers", or "labels" (several for each)."""
    tokens: bool = False
    """Whether the inputs are the ids of tokens."""


@dataclass(frozen=True)
class AuditResult:
    """The whole audit."""

    setup: Setup
    defenses: tuple[DefenseResult, ...]
    originals: tuple[str, ...] = ()
    """The first batch's images as PNG files in base64."""
    complete: bool = True
    """False if it was stopped (Ctrl-C, a time budget) before all defenses were attacked."""
    notes: tuple[str, ...] = ()
    """What a reader should know of this run: what was left out, what the bounds do not count."""
    stopped: StopReason | None = None
    """Why it is not complete; `None` if it is, and for results of versions that did not say."""
    undefended: Undefended | None = None
    """Whether the attacks work on this model at all; `None`: not known, nothing was attacked."""
    frontier: Frontier | None = None
    """Curves over strengths and the answers; `None` where defenses were compared at one point."""

    def to_json(self) -> str:
        """The result as JSON text, floats exact."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "AuditResult":
        """The result that `to_json` wrote, of this version or an earlier one."""
        result: AuditResult = restore(cls, json.loads(text))
        defenses = tuple(d if d.family else _identified(d) for d in result.defenses)
        return dataclasses.replace(result, defenses=defenses)

    @classmethod
    def load(cls, path: Path | str) -> "AuditResult":
        """The result in a `results.json`."""
        return cls.from_json(Path(path).read_text())

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each defense and attack, as in the table and in results.csv."""
        shared = undefended_columns(self.undefended)
        return [{**_row(d, attack), **shared} for d in self.defenses for attack in d.attacks]

    def to_dataframe(self) -> "pandas.DataFrame":
        """The rows as a pandas DataFrame; needs pandas."""
        require("to_dataframe", "pandas", "pandas")
        import pandas

        return pandas.DataFrame(self.rows())


def identity(defense: Defense) -> dict[str, Any]:
    """What a defense says of itself, as the fields of a DefenseResult."""
    twin = None if defense.twin is None else name_of(defense.twin)
    return {"family": defense.family, "twin": twin, "is_undefended": defense.is_undefended}


def _identified(result: DefenseResult) -> DefenseResult:
    """A result of a version that did not keep these fields; unchanged if it cannot be built."""
    try:
        return dataclasses.replace(result, **identity(build_defense(result.defense)))
    except (TypeError, ValueError):
        return result


def _row(defense: DefenseResult, attack: AttackResult) -> dict[str, Any]:
    bound, training, told = defense.bound, defense.training, defense.told_apart
    ends = (bound and bound.mse_interval) or (None, None)
    row: dict[str, Any] = {
        "name": defense.name,
        "defense": defense.defense,
        "attack": attack.attack,
        "knows_defense": attack.knows_defense,
        "utility_first": defense.utility_first,
        "utility_second": defense.utility_second,
        "bound_mse": bound.mse if bound else None,
        "bound_mse_low": ends[0],
        "bound_mse_high": ends[1],
        "bound_trace_mse": bound.trace_mse if bound else None,
        "bound_psnr_ceiling": bound.psnr_ceiling if bound else None,
        "bound_prior": bound.prior if bound else None,
        "bound_batches": bound.batches if bound else None,
        "no_guarantee": defense.no_guarantee,
        "told_apart_candidates": told.candidates if told else None,
        "told_apart_rate": told.rate.mean if told else None,
        "told_apart_bits": told.bits.mean if told else None,
        **privacy_columns(defense.privacy),
        "loss_after": training.loss_after.mean if training else None,
        "bytes_sent": defense.bytes_sent,
        "time_ratio": defense.time_ratio,
        "label_accuracy": attack.label_accuracy,
    }
    for name in ("mse", "mse_pixels", "psnr", "ssim", "accuracy"):
        value = getattr(attack, name)
        for end in ("mean", "low", "high"):
            row[name if end == "mean" else f"{name}_{end}"] = getattr(value, end, None)
    return row

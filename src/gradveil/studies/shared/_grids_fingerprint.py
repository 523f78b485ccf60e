"""The presets of the study of plans as fingerprints."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class FingerprintGrid:
    """Candidates for one example of a batch, on fresh and on trained models."""

    data: str
    model: str
    trained: tuple[int, ...]
    scales: tuple[float, ...]
    size: int
    """Examples in the batch."""
    examples: int
    """From the first so many, candidates and the rest of the batch are drawn."""
    candidates: int
    one_class: bool
    draws: int
    trials: int
    """For each draw."""
    public: Mapping[str, int]


_DIGITS = FingerprintGrid(
    "mnist",
    "simple-conv-net",
    trained=(0, 60),
    scales=(0.1, 1.0, 100.0),
    size=4,
    examples=2000,
    candidates=60,
    one_class=True,
    draws=6,
    trials=50,
    public={"start": 2000, "size": 4, "batches": 24},
)
_PHOTOS = replace(
    _DIGITS,
    data="cifar10",
    model="conv-net(width=16)",
    trained=(0,),
    size=1,
    examples=12,
    candidates=12,
    one_class=False,
    draws=1,
    public={"start": 12, "size": 1, "batches": 8},
)
FINGERPRINT: Mapping[str, tuple[FingerprintGrid, ...]] = {
    "quick": (
        replace(
            _DIGITS, trained=(0,), scales=(1.0, 100.0), size=1, candidates=8, draws=2, trials=3
        ),
    ),
    "standard": (_DIGITS, _PHOTOS),
    "paper": (replace(_DIGITS, draws=20), _PHOTOS),
}
"""The 20 embedded photos are few: one draw of 12 candidates of any class, the others are the public
ones; a model trained on them would know them by heart and send no gradient to tell them by."""

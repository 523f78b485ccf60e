"""What an audit over strengths measures, as cells."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from gradveil.attacks import ThreatModel
from gradveil.studies.runner import Cell

from ..._privacy import Releases
from ..._subject import Subject
from . import _cells
from ._state import state_of
from ._training import Training

MODULE = _cells.__name__


@dataclass(frozen=True)
class Plan:
    """The settings that all cells of one audit share."""

    subject: str
    """Its fingerprint."""
    attacks: tuple[str, ...]
    threat: ThreatModel
    training: Training
    releases: Releases
    seeds: int
    seed: int
    trials: int
    """Messages by which the exact attacker is measured."""

    def train(self, defense: str) -> Cell:
        """A defended training."""
        return self._cell("train", defense, training=asdict(self.training), seed=self.seed)

    def attack(self, defense: str, moment: int = 0) -> Cell:
        """All attacks, at one moment of the training."""
        shared = {"attacks": list(self.attacks), "threat": asdict(self.threat), "seeds": self.seeds}
        return self._cell("attack", defense, **shared, **self._moment(moment))

    def identify(self, defense: str, moment: int = 0) -> Cell:
        """The exact attacker, at one moment."""
        return self._cell("identify", defense, trials=self.trials, **self._moment(moment))

    def bound(self, defense: str) -> Cell:
        """The reference error."""
        return self._cell("bound", defense, seed=self.seed)

    def smooth(self) -> Cell:
        """Whether reference errors are bounds for this model."""
        return self._cell("smooth", "gradient-noise(scale=1.0)", seed=self.seed)

    def detail(self, defense: str) -> Cell:
        """The details of a setting that is shown."""
        return self._cell("detail", defense, seed=self.seed, releases=asdict(self.releases))

    def point(self, defense: str, moment: int = 0) -> list[Cell]:
        """All cells of one point; later moments are attacked only."""
        leaks = [self.attack(defense, moment), self.identify(defense, moment)]
        return leaks if moment else [*leaks, self.train(defense), self.bound(defense)]

    def _moment(self, moment: int) -> dict[str, Any]:
        """A fresh model does not depend on the training."""
        training = {"training": asdict(self.training)} if moment else {}
        return {"round": moment, "seed": self.seed, **training}

    def _cell(self, name: str, defense: str, **settings: Any) -> Cell:
        return Cell(f"{MODULE}:{name}", {"subject": self.subject, "defense": defense, **settings})


def subject_fingerprint(subject: Subject) -> str:
    """SHA-256 of model, loss, data and public examples, and of the user's own code in them."""
    content = {
        "model": subject.model,
        "loss": subject.loss_fn,
        "data": [subject.data.inputs, subject.data.targets, subject.data.mean, subject.data.std],
        "public": subject.public,
        "batch_size": subject.batch_size,
        "local": subject.local,
        "layout": subject.layout,
        "others": [subject.range_is_public, subject.prior],
    }
    return hashlib.sha256(json.dumps(state_of(content)).encode()).hexdigest()

"""Results of single attacks, kept in a file as they come in."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class AgainstRun:
    """One attack on one batch."""

    case: str
    attack: str
    first: int
    """The place of the batch's first image in the data set."""
    settings: str
    """All else that the result depends on: data, steps and time, as the user gave them."""
    psnr: tuple[float, ...]
    """In dB, of each image, matched."""
    seconds: float
    """Of this process's own time."""
    steps: int
    """As the attack counts them; 0 where it does not."""
    picture: list[list[list[int]]] | None = None
    """The batch's first image as it was found, matched: channels, rows and pixels, 0 to 255."""

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What was run."""
        return self.case, self.attack, self.first, self.settings


class RunFile:
    """The runs that are done, in lines of JSON; a killed process loses only the one at work."""

    def __init__(self, path: Path | None) -> None:
        self.path, self._runs = path, {run.key: run for run in _read(path)}

    def find(self, case: str, attack: str, first: int, settings: str) -> AgainstRun | None:
        """The run with these settings, if it is done."""
        return self._runs.get((case, attack, first, settings))

    def add(self, run: AgainstRun) -> AgainstRun:
        """Keep a run."""
        self._runs[run.key] = run
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(run)) + "\n")
        return run


def _read(path: Path | None) -> list[AgainstRun]:
    """The runs of a file; a last line that a killed process left half-written is dropped."""
    if path is None or not path.exists():
        return []
    runs = []
    for line in path.read_text().splitlines():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        runs.append(AgainstRun(**{**values, "psnr": tuple(values["psnr"])}))
    return runs

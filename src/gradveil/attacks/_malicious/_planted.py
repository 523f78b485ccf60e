"""The check that a server may have changed the model."""

from .._observation import Observation


def check_planted(observation: Observation, name: str) -> None:
    """Require an observation of a server that may send any model."""
    if observation.server != "malicious":
        raise ValueError(
            f"Parameter `observation` should be that of a server that changes the model for"
            f" {name}. Found `observation.server = {observation.server!r}`. Send the model that"
            " `plant` makes, and observe it with `ThreatModel(server='malicious')`."
        )

"""What clients send and what attackers are granted, from the command line."""

from enum import Enum

from gradveil.attacks import LocalSteps, ThreatModel

from .._options import option, options, useless


class MessageKind(str, Enum):
    """The kind of message that clients send."""

    gradient = "gradient"
    update = "update"


def local_training(message: MessageKind, steps: int | None, lr: float | None) -> LocalSteps | None:
    """FedAvg's local steps, or none where gradients are sent."""
    sent = message is MessageKind.update
    useless("--local-steps", steps, sent, "without `--message update`")
    useless("--local-lr", lr, sent, "without `--message update`")
    if not sent:
        return None
    with options({"lr": "--local-lr", "steps": "--local-steps"}):
        return LocalSteps(0.1 if lr is None else lr, 2 if steps is None else steps)


def parse_threat(parts: list[str]) -> ThreatModel:
    """`labels=known,mechanism=unknown` and the like; what is not named is known.

    >>> parse_threat(["labels=counts,statistics=unknown"])
    ThreatModel(labels='counts', mechanism='known', statistics=False, server='honest')
    """
    granted = {"labels": "known", "mechanism": "known", "statistics": "known"}
    given: set[str] = set()
    for part in (piece for text in parts for piece in text.split(",") if piece.strip()):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in granted or not value:
            raise ValueError(
                f"Option `--threat` should read key=value with a key of {', '.join(granted)}."
                f" Found {part!r}. Try labels=unknown."
            )
        if key in given:
            raise ValueError(
                f"Option `--threat` should say each thing once. Found {key} twice, the second time"
                f" as {part!r}. Leave one out."
            )
        given.add(key)
        granted[key] = value
    if granted["statistics"] not in ("known", "unknown"):
        raise ValueError(
            "Option `--threat` should have statistics=known or statistics=unknown. Found"
            f" statistics={granted['statistics']}."
        )
    statistics = granted["statistics"] == "known"
    with option("--threat"):
        return ThreatModel(granted["labels"], granted["mechanism"], statistics)

"""What an attacker is granted beside the message itself."""

from dataclasses import dataclass

from gradveil._batches import Task
from gradveil._checks import check_choice, check_flag

LABELS = ("known", "counts", "unknown")
MECHANISMS = ("unknown", "known", "realised")
SERVERS = ("honest", "malicious")


@dataclass(frozen=True)
class ThreatModel:
    """What the attacker knows. The model, the loss, the batch size and the shapes are always known.

    Args:
        labels: "known" (in the client's order), "counts" (how often each class occurs), or
            "unknown". Where targets are numbers, or several labels for each example, these are
            meant, and there are no counts.
        mechanism: "unknown"; "known" (Kerckhoffs: the defense and its settings, not what it drew
            or planned from the private batch; a plan that is not private is known to everybody);
            or "realised" (the worst case: the very noise levels or mask of a plan made from the
            private batch, which nobody sends).
        statistics: Whether the mean, the standard deviation and so the range of the normalised
            inputs are known.
        server: "honest" (it follows the protocol, and reads what it gets) or "malicious" (it sends
            whatever model serves it: what `Imprint.plant` or `Fishing.plant` makes).

    >>> ThreatModel(mechanism="known").labels
    'known'
    """

    labels: str = "known"
    mechanism: str = "unknown"
    statistics: bool = True
    server: str = "honest"

    def __post_init__(self) -> None:
        check_choice(self.labels, "labels", LABELS)
        check_choice(self.mechanism, "mechanism", MECHANISMS)
        check_flag(self.statistics, "statistics")
        check_choice(self.server, "server", SERVERS)

    def check_task(self, task: Task) -> None:
        """Require knowledge that there can be of these targets: counts are those of classes."""
        if self.labels == "counts" and task != "classification":
            raise ValueError(
                "Parameter `threat` should have labels='known' or 'unknown' where targets are not"
                f" one class label for each example. Found labels='counts' with {task}."
            )

"""Plans from public data: Theorems 2 to 4 with moments over a data set."""

from torch import nn
from torch.nn.functional import cross_entropy

from gradveil._random import named_stream
from gradveil.data import Dataset
from gradveil.messages import GradientMessage
from gradveil.sensitivity import Moments, measure
from gradveil.studies.runner import Settings


def public_moments(
    model: nn.Module, data: Dataset, public: Settings, clip: float | None = None
) -> Moments:
    """E g² and E‖∇g‖² over `batches` batches of `size` examples from `start` on."""
    generator = named_stream("studies", 0, "public moments", 0)
    size = public["size"]
    return Moments.average(
        measure(
            GradientMessage(model, cross_entropy, targets), inputs, clip=clip, generator=generator
        )
        for inputs, targets in (
            data.batch(public["start"] + size * index, size) for index in range(public["batches"])
        )
    )

"""The result of one defended step."""

from typing import NamedTuple

from gradveil._typing import Tensors
from gradveil.mechanisms import AnyMechanism


class Defended(NamedTuple):
    """A message before and after its defense. Only `sent` may leave the client."""

    values: Tensors
    """The message as it would be without a defense."""
    mechanism: AnyMechanism | None
    """What made `sent` of `values`; `None` for a defense that has no mechanism."""
    sent: Tensors
    """What the client sends, by parameter name."""

"""Messages whose examples, or which themselves, are clipped in the norm of a noise shape."""

from ._isolated import example_gradients
from ._message import ClippedMessage, ClippedUpdate
from ._metric import Metric
from ._process import in_a_fork

__all__ = ["ClippedMessage", "ClippedUpdate", "Metric", "example_gradients", "in_a_fork"]

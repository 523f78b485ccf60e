"""Images of coarser pixels."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import avg_pool2d

from gradveil._checks import check_count
from gradveil.messages import MappedMessage, Message

from ._input_defense import InputDefense


@dataclass(frozen=True)
class Pixelization(InputDefense):
    """Every block of size × size pixels becomes its mean; the image keeps its shape (Fan 2018).

    Guarantee: none (Fan's own has noise, too). The means of the blocks are in the message as
    everything is without a defense; what is inside of the blocks is not in it at all, so that
    images which differ only there cannot be told apart.

    Args:
        size: The side of a block in pixels; those at the edge may be smaller.

    >>> import torch
    >>> Pixelization(2).pixelated(torch.tensor([[[[1.0, 3.0, 5.0]]]]))
    tensor([[[[2., 2., 5.]]]])
    """

    size: int = 2

    def __post_init__(self) -> None:
        check_count(self.size, "size")

    def prepared(self, message: Message) -> Message:
        """The message of the pixelated images."""
        return MappedMessage(message, before=self.pixelated)

    def check_batch(self, inputs: Tensor) -> None:
        """Require images."""
        super().check_batch(inputs)
        if inputs.dim() != 4:
            raise ValueError(
                "Parameter `inputs` should be images of shape (examples, channels, height, width)"
                f" to be pixelated. Found `inputs.shape = {tuple(inputs.shape)}`. Use another"
                " defense."
            )

    def pixelated(self, images: Tensor) -> Tensor:
        """The images with each block at its mean."""
        height, width = images.shape[-2:]
        sides = min(self.size, height), min(self.size, width)
        means = avg_pool2d(images, sides, stride=self.size, ceil_mode=True)
        blocks = means.repeat_interleave(self.size, -2).repeat_interleave(self.size, -1)
        return blocks[..., :height, :width]

"""Images as PNG files in base64, for reports."""

import base64
import io

from torch import Tensor

from gradveil._extras import require

MODES = {1: "L", 3: "RGB"}


def pictures(pixels: Tensor) -> tuple[str, ...]:
    """One PNG for each image of shape (channels, height, width) in [0, 1] units.

    Nothing for inputs that are not images of one or three channels.
    """
    if pixels.dim() != 4 or pixels.shape[1] not in MODES:
        return ()
    return tuple(_png(image) for image in pixels)


def _png(image: Tensor) -> str:
    require("a picture", "gradveil[audit]", "PIL")
    from PIL import Image

    grey = (image.detach().clamp(0, 1) * 255).round().byte().movedim(0, -1).cpu()
    mode, size = MODES[image.shape[0]], (image.shape[2], image.shape[1])
    file = io.BytesIO()
    Image.frombytes(mode, size, bytes(grey.flatten().tolist())).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()

"""Where a model's parameters are used, and what each use contributes for each example."""

from ._layer_use import ConvUse, EmbeddingUse, LayerUse, LinearUse, ScaleUse
from ._recorder import Recorder
from ._run import Recording, record

__all__ = [
    "ConvUse",
    "EmbeddingUse",
    "LayerUse",
    "LinearUse",
    "Recorder",
    "Recording",
    "ScaleUse",
    "record",
]

"""The `layer-sizes` cell: the number of parameters of each layer."""

from collections.abc import Mapping

from gradveil.studies.runner import Settings, Value, cell_function

from ._parts import model


@cell_function("layer-sizes")
def layer_sizes(settings: Settings) -> Mapping[str, Value]:
    """The number of entries of each parameter of a `model` (for `data`)."""
    return {"sizes": [[name, p.numel()] for name, p in model(settings).named_parameters()]}

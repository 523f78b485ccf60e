"""The size of a message in bytes, dense or sparse."""

from gradveil._typing import Tensors

_INDEX_BYTES = 4


def size_in_bytes(values: Tensors) -> int:
    """Bytes of the values, tensor by tensor: dense, or as index and value where that is less."""
    total = 0
    for value in values.values():
        each = value.element_size()
        sparse = int(value.count_nonzero()) * (each + _INDEX_BYTES)
        total += min(value.numel() * each, sparse)
    return total

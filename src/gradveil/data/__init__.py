"""Data sets: real samples that come with packages, official files, arrays, the Hugging Face hub.

>>> from gradveil.data import load_dataset
>>> dataset = load_dataset("cifar10")
>>> inputs, targets = dataset.batch(start=0, size=2)
>>> inputs.shape, targets.tolist()
(torch.Size([2, 3, 32, 32]), [3, 8])
"""

from ._dataset import (
    IDENTITY,
    Dataset,
    Normalization,
    NormalizationLike,
    TableLayout,
    observed_normalization,
    resolve_normalization,
)
from ._load import load_dataset

# What `__all__` does not list is for our own packages.
__all__ = ["Dataset", "Normalization", "TableLayout", "load_dataset"]

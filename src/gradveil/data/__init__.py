"""Data sets: real samples that come with packages, official files, arrays, the Hugging Face hub.

>>> from gradveil.data import load_dataset
>>> dataset = load_dataset("cifar10")
>>> inputs, targets = dataset.batch(start=0, size=2)
>>> inputs.shape, targets.tolist()
(torch.Size([2, 3, 32, 32]), [3, 8])
"""

from gradveil.data._dataset import Dataset
from gradveil.data._load import dataset_names, load_dataset
from gradveil.data._normalization import (
    IDENTITY,
    Normalization,
    NormalizationLike,
    observed_normalization,
    resolve_normalization,
)
from gradveil.data._table_layout import TableLayout

__all__ = [
    "IDENTITY",
    "Dataset",
    "Normalization",
    "NormalizationLike",
    "TableLayout",
    "dataset_names",
    "load_dataset",
    "observed_normalization",
    "resolve_normalization",
]

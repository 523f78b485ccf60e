"""Data sets and models from the names in a cell's settings.

Random numbers of cells come from the streams ("studies", seed, purpose, first image of the batch):
what one part draws does not shift another's. Batches must not share the noise or the start of an
attack: the differences on them are taken for independent. Defenses on one batch do share them,
which pairs the comparison.
"""

from functools import lru_cache

from torch import nn

from gradveil.bench import train
from gradveil.data import Dataset, load_dataset
from gradveil.models import build_model
from gradveil.studies.runner import Settings, data_folder

OFFICIAL = {"mnist-test": "mnist"}
"""Data sets that lie in the folder of `gradveil reproduce --data`, in their official files."""


FIRST_LABELS = [7, 2, 1, 0, 4, 1, 4, 9, 5, 9, 0, 6, 9, 0, 1, 5]
"""By which the official test set of MNIST is told from other data in the same format."""


@lru_cache(maxsize=4)
def dataset(name: str) -> Dataset:
    """ "mnist" and "cifar10" are embedded; "mnist-test" is the official test set."""
    if name not in OFFICIAL:
        return load_dataset(name)
    folder = data_folder()
    if folder is None:
        raise FileNotFoundError(
            f"Data set `{name}` should lie in a folder that you name. Found none. Give the folder"
            " with the official MNIST files with `gradveil reproduce --data FOLDER`."
        )
    data = load_dataset(folder, normalization=OFFICIAL[name])
    if data.targets[: len(FIRST_LABELS)].tolist() != FIRST_LABELS:
        raise ValueError(
            f"Folder `{folder}` should hold the test set of MNIST, whose first labels are"
            f" {FIRST_LABELS}. Found {data.targets[: len(FIRST_LABELS)].tolist()}. Put"
            " t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte there, and no training files."
        )
    return data


def model(settings: Settings) -> nn.Module:
    """The model that the settings name, fresh, or after some Adam steps on batches of 64."""
    return _model(
        settings["model"],
        settings.get("model_seed", 0),
        settings.get("trained", 0),
        settings["data"],
    )


@lru_cache(maxsize=4)
def _model(spec: str, seed: int, steps: int, data: str) -> nn.Module:
    made = build_model(spec, seed)
    if steps:
        train(made, dataset(data), steps)
    return made.eval()

"""Cells on the photos of CIFAR-10's official test set, of which no package carries enough."""

from collections.abc import Mapping
from pathlib import Path

from gradveil.studies.runner import Settings, Value, cell_function, data_folder

from ._attack import attack
from ._parts import dataset
from ._training import training

PHOTOS = "cifar10-test"
FOLDER = "cifar10"
"""Where CIFAR-10's official files lie, below the folder of `gradveil reproduce --data`."""
COUNT = 846
"""The photos that are used, from the first one on."""
FIRST_LABELS = [3, 8, 8, 0, 6, 6, 1, 6, 3, 1, 0, 9, 5, 7, 9, 8]
"""By which the test set is told from other data in the same format."""


@cell_function("photo-attack")
def photo_attack(settings: Settings) -> Mapping[str, Value]:
    """An `attack`; the data may be "cifar10-test"."""
    return attack(_located(settings))


@cell_function("photo-training")
def photo_training(settings: Settings) -> Mapping[str, Value]:
    """A `training`; the data may be "cifar10-test"."""
    return training(_located(settings))


def _located(settings: Settings) -> Settings:
    """The settings with the place of the official files in place of their name."""
    return {**settings, "data": str(check_photos())} if settings["data"] == PHOTOS else settings


def check_photos() -> Path:
    """The folder of CIFAR-10's official files; an error says what is missing."""
    folder = data_folder()
    place = None if folder is None else (folder / FOLDER).resolve()
    if place is None or not place.is_dir() or not any(place.iterdir()):
        raise _missing("no such folder" if place is None else f"nothing in `{place}`")
    labels = dataset(str(place)).targets.tolist()
    if labels[: len(FIRST_LABELS)] != FIRST_LABELS:
        raise _missing(f"other photos there, with labels {labels[: len(FIRST_LABELS)]}")
    if len(labels) < COUNT:
        raise _missing(f"{len(labels)} of them in `{place}`")
    return place


def _missing(found: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"CIFAR-10's official test photos, {COUNT:,} or more, should lie in a folder `{FOLDER}`"
        f" below the one that you name. Found {found}. Put test_batch.bin into FOLDER/{FOLDER},"
        " with no training files, and give `gradveil reproduce --data FOLDER`."
    )

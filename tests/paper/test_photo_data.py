"""Cells on CIFAR-10's official photos: found by their folder, and the plain cells otherwise."""

import pytest
import torch

from gradveil.data import load_dataset
from paper.cells import OFFICIAL, dataset
from paper.grids import PHOTO_FRONTIER
from paper.study import FUNCTIONS

PHOTOS = "cifar10-test"
TRAINING = {
    "model": "conv-net(width=2)",
    "start": 0,
    "examples": 8,
    "clients": 4,
    "batch_size": 2,
    "rounds": 2,
    "optimizer": "adam",
    "lr": 1e-3,
    "seed": 0,
    "defense": "optimal-clamped-noise(scale=0.001)",
    "public": {"start": 8, "examples": 8, "refresh": 2},
}
ATTACK = {
    "model": "conv-net(width=2)",
    "start": 1,
    "size": 1,
    "seed": 0,
    "attack": "paper(steps=3)",
    "mechanism": "known",
    "defense": "optimal-clamped-noise(scale=0.001)",
    "public": {"start": 8, "examples": 8},
}


def write_photos(folder, labels, times=43):
    """The embedded photos in the format of the official file, several times, with these labels."""
    data = load_dataset("cifar10")
    pixels = (data.to_pixels(data.inputs) * 255).round().to(torch.uint8).flatten(1)
    folder.mkdir()
    records = torch.cat([labels.to(torch.uint8)[:, None], pixels], 1)
    (folder / "test_batch.bin").write_bytes(times * records.numpy().tobytes())


@pytest.fixture
def with_photos(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADVEIL_DATA", str(tmp_path))
    dataset.cache_clear()
    yield tmp_path / "cifar10"
    dataset.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), [("training", TRAINING), ("attack", ATTACK)])
def test_official_photos_give_what_the_same_embedded_ones_give(with_photos, kind, settings):
    write_photos(with_photos, load_dataset("cifar10").targets)
    official = FUNCTIONS[kind]({**settings, "data": PHOTOS})
    embedded = FUNCTIONS[kind]({**settings, "data": "cifar10"})
    value = {"training": "losses", "attack": "mse"}[kind]
    assert official[value] == embedded[value]


def test_without_the_photos_it_says_where_they_should_lie(with_photos, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"Put them into FOLDER/cifar10"):
        FUNCTIONS["training"]({**TRAINING, "data": PHOTOS})
    with_photos.mkdir()
    with pytest.raises(FileNotFoundError, match="Found nothing in"):
        dataset(PHOTOS)
    monkeypatch.delenv("GRADVEIL_DATA")
    with pytest.raises(FileNotFoundError, match="Found no folder"):
        dataset(PHOTOS)


def test_other_photos_and_too_few_are_refused(with_photos):
    labels = load_dataset("cifar10").targets
    write_photos(with_photos, labels.flip(0))
    with pytest.raises(FileNotFoundError, match=r"Found 860, first \["):
        dataset(PHOTOS)
    (with_photos / "test_batch.bin").unlink()
    with_photos.rmdir()
    write_photos(with_photos, labels, times=42)
    with pytest.raises(FileNotFoundError, match="Found 840"):
        dataset(PHOTOS)


def test_a_folder_that_is_named_from_here_is_no_name_of_embedded_data(with_photos, monkeypatch):
    write_photos(with_photos, load_dataset("cifar10").targets)
    monkeypatch.chdir(with_photos.parent)
    monkeypatch.setenv("GRADVEIL_DATA", ".")
    assert len(dataset(PHOTOS)) == 860


def test_the_grids_use_no_more_photos_than_are_asked_for():
    for grid in PHOTO_FRONTIER.values():
        if grid.training["data"] == PHOTOS:
            assert (
                grid.training["held_out_start"] + grid.training["held_out"] == OFFICIAL[PHOTOS][1]
            )

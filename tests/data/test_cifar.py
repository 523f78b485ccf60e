import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradveil.data import Dataset, load_dataset

Arrays = tuple[np.ndarray, np.ndarray]
Helper = Callable[..., None]

CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 10)


def assert_is_photos(data: Dataset, photos: Arrays, repeats: int = 1) -> None:
    assert data.inputs.shape == (4 * repeats, 3, 32, 32)
    assert data.targets.tolist() == [3, 8, 8, 0] * repeats
    assert (data.mean, data.std, data.num_classes) == CIFAR10
    pixels = (data.to_pixels(data.inputs) * 255).round().to(torch.uint8)
    assert torch.equal(pixels, torch.tensor(np.concatenate([photos[0]] * repeats)))


def test_binary(tmp_path: Path, write_cifar_binary: Helper, photos: Arrays) -> None:
    write_cifar_binary(tmp_path)
    write_cifar_binary(tmp_path, "data_batch_1.bin")
    write_cifar_binary(tmp_path, "data_batch_2.bin")
    assert_is_photos(load_dataset(tmp_path, split="test"), photos)
    assert_is_photos(load_dataset(tmp_path, split="train"), photos, repeats=2)


@pytest.mark.parametrize("size", [0, 3072, 4 * 3073 - 1])
def test_truncated_binary(tmp_path: Path, size: int) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes(size))
    with pytest.raises(ValueError, match=rf"records of 3073 bytes. Found {size} bytes"):
        load_dataset(tmp_path)


def test_binary_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes([77]) * 3073)
    with pytest.raises(ValueError, match=r"labels from 0 to 9.*Found labels from 77 to 77"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_python(tmp_path: Path, write_cifar_python: Helper, photos: Arrays, protocol: int) -> None:
    write_cifar_python(tmp_path, protocol=protocol)
    write_cifar_python(tmp_path, "data_batch_1", protocol)
    write_cifar_python(tmp_path, "data_batch_2", protocol)
    assert_is_photos(load_dataset(tmp_path), photos)
    assert_is_photos(load_dataset(tmp_path, split="train"), photos, repeats=2)


def official_pickle(images: np.ndarray, labels: np.ndarray) -> bytes:
    """As Python 2 and an old NumPy wrote the official files: byte strings, `align` as integer."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value  # SHORT_BINSTRING

    pixels = images.tobytes()
    rows = b"K" + bytes([len(images)])
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNNJ"
    dtype += b"\xff" * 4 + b"J" + b"\xff" * 4 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
    array += b"(K\x01(" + rows + b"M\x00\x0ct" + dtype + b"\x89"
    array += b"T" + len(pixels).to_bytes(4, "little") + pixels + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


@pytest.mark.filterwarnings("error")
def test_python_2_pickle(tmp_path: Path, photos: Arrays) -> None:
    (tmp_path / "test_batch").write_bytes(official_pickle(*photos))
    assert_is_photos(load_dataset(tmp_path), photos)


class RunsCode:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "executed"
    (tmp_path / "test_batch").write_bytes(
        pickle.dumps({b"data": RunsCode(marker), b"labels": []}, protocol)
    )
    with pytest.raises(ValueError, match=r"pickle of plain data.*not allowed.*Nothing of it was"):
        load_dataset(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n.",
        b"cnumpy._core.multiarray\nfromfile\n.",
        b"c_codecs\nencode\n(Vx\nVhex\ntR.",
        b"Pid\n.",
        pickle.dumps({b"data": np.array([{}, None], dtype=object)}),
        b"",
        b"\x80\x02}",
        b"garbage",
    ],
)
def test_other_pickles_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=r"should be a pickle of plain data"):
        load_dataset(tmp_path)


@pytest.mark.parametrize(
    "batch",
    [
        [1, 2],
        {b"data": 1, b"labels": [1]},
        {b"data": np.zeros((1, 3072)), b"labels": [1]},
        {b"data": np.zeros((1, 3071), dtype=np.uint8), b"labels": [1]},
        {b"data": np.zeros((2, 3072), dtype=np.uint8), b"labels": [1]},
        {b"data": np.zeros((1, 3072), dtype=np.uint8)},
        {b"data": np.zeros((1, 3072), dtype=np.uint8), b"labels": ["cat"]},
    ],
)
def test_plain_pickles_of_something_else_are_refused(tmp_path: Path, batch: object) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch))
    with pytest.raises(ValueError, match=r"should be a pickled dictionary with uint8 `data`"):
        load_dataset(tmp_path)

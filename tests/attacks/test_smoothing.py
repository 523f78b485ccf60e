import torch

from gradveil.attacks._model_layers import SmoothLeakyReLU, SmoothTwin

from .tiny import conv_net, generator, observed, smooth_images


def test_the_smooth_twin_tends_to_the_model():
    inputs = torch.randn(50, generator=generator())
    exact = torch.nn.functional.leaky_relu(inputs, 0.1)
    torch.testing.assert_close(SmoothLeakyReLU(0.1, 1e-4)(inputs), exact, atol=1e-3, rtol=0)
    model = conv_net(1, (4, 4), smooth=False)
    observation = observed(model, smooth_images(2, 1, (4, 4)), [0, 1])
    twin = SmoothTwin(observation, 0.1)
    assert twin.is_smoother
    assert any(isinstance(m, torch.nn.LeakyReLU) for m in model.modules())  # left alone
    assert not SmoothTwin(
        observed(conv_net(1, (4, 4)), torch.zeros(1, 1, 4, 4), [0]), 1
    ).is_smoother

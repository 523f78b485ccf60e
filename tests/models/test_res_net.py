import torch
from torch import nn

from gradveil.models import ResNet, build_model


def test_it_is_resnet_18() -> None:
    model = ResNet()
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert sum(m.weight.shape[-1] != 1 for m in layers) == 18  # shortcuts of 1x1 do not count


def test_each_stage_but_the_first_halves_the_image() -> None:
    model = build_model("res-net(width=2)")
    maps = model.stem(torch.zeros(1, 3, 32, 32))
    sizes = [(maps := block(maps)).shape[1:] for block in model.blocks]
    assert sizes[1::2] == [(2, 32, 32), (4, 16, 16), (8, 8, 8), (16, 4, 4)]


def test_inputs_reach_the_output_by_the_shortcuts_alone() -> None:
    model = build_model("res-net(width=2, num_channels=1)")
    with torch.no_grad():
        for block in model.blocks:
            block.path[-1].weight.zero_()
    images = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    outputs = model(images)
    assert outputs.shape == (2, 10)
    assert not torch.allclose(outputs[0], outputs[1])

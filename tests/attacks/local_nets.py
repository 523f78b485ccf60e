"""Small models and updates for the tests of peeling along local steps."""

import torch
from torch import Tensor, nn

from gradveil.attacks import Observation
from gradveil.attacks._peel import LocalHead, Visits, head_of
from gradveil.messages import LocalSteps

from .small import LOSS, seeded

CASES = {
    "whole batch": LocalSteps(0.1, 3),
    "mini-batches, one epoch": LocalSteps(0.1, 2, batch_size=2),
    "mini-batches, two epochs": LocalSteps(0.1, 4, batch_size=2),
    "uneven mini-batches, momentum": LocalSteps(0.05, 4, batch_size=3, momentum=0.5),
}


def conv_net(bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.LeakyReLU(), nn.Flatten(),
            nn.Linear(6 * 64, 20, bias=bias), nn.LeakyReLU(), nn.Linear(20, 10),
        ).eval().to(dtype)  # fmt: skip


def true_features(model: nn.Module, batch: tuple[Tensor, Tensor], local: LocalSteps) -> Tensor:
    """What the first linear layer reads in each step of `torch.optim.SGD`; the model is moved."""
    inputs, labels = batch
    seen: list[Tensor] = []
    handle = model[3].register_forward_pre_hook(lambda _, own: seen.append(own[0].detach()))
    optimiser = torch.optim.SGD(model.parameters(), local.lr, local.momentum)
    for step in Visits.of(local, len(inputs)).steps:
        optimiser.zero_grad()
        LOSS(model(inputs[step]), labels[step]).backward()
        optimiser.step()
    handle.remove()
    return torch.cat(seen)


def local_head(observation: Observation, labels: Tensor) -> LocalHead:
    head = head_of(observation, seeded())
    assert head is not None
    head.twin.set_width(1e-9)
    return LocalHead(head, labels)

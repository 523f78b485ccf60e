"""A small convolutional model with two max-pools, and what is true of its stages."""

import torch
from torch import Tensor, nn

from gradveil.attacks import Observation
from gradveil.attacks._model_layers import Stage, chain_of, features_of, through
from gradveil.attacks._unpool import Equations

from .small import observed, smooth_images


def small_net(activation: type[nn.Module] = nn.LeakyReLU) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), activation(),
            nn.Conv2d(12, 16, 3, padding=1), activation(), nn.MaxPool2d(2),
            nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), activation(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(24 * 9, 10),
        ).eval()  # fmt: skip


def seen(model: nn.Sequential, count: int = 1) -> tuple[Tensor, Observation, list[Stage]]:
    """The images, what is sent of them, and the model's stages."""
    batch = smooth_images(count, 3, 12, 12)
    observation = observed(model, batch, labels="known")
    last = str(len(model) - 1)
    stages = chain_of(observation, features_of(last, observation)(batch[0]).detach(), batch[0])
    assert stages is not None
    return batch[0], observation, stages


def last_equations(model: nn.Sequential, count: int = 1) -> tuple[Equations, Tensor]:
    """Of the last stage, in float64, from the truth; and its true inputs."""
    images, observation, stages = seen(model, count)
    images, double = images.double(), [stage.to(images.double()) for stage in stages]
    inputs = through(double[:-1], images)
    outputs = double[-1](inputs).requires_grad_()
    head = model[-1].double()
    loss = nn.functional.cross_entropy(head(outputs.flatten(1)), observation.labels)
    slopes = torch.autograd.grad(loss, outputs)[0]
    gradient = _kernel_gradient(model, images, observation)
    return Equations(stages[-1], outputs.detach(), slopes, gradient, inputs.shape), inputs


def _kernel_gradient(model: nn.Sequential, images: Tensor, observation: Observation) -> Tensor:
    loss = nn.functional.cross_entropy(model.double()(images), observation.labels)
    convolution = [module for module in model if isinstance(module, nn.Conv2d)][-1]
    gradient: Tensor = torch.autograd.grad(loss, convolution.weight)[0]
    model.float()
    return gradient

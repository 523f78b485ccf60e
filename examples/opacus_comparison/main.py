"""The same private training with Opacus and with gradveil's PrivateNoise, side by side."""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import gradveil
from gradveil.privacy import PrivacyAccount, SecureGenerator, poisson_sample

NOISE_MULTIPLIER, CLIP, BATCH, LR, DELTA = 1.0, 1.0, 200, 0.5, 1e-5
HELD_OUT = 1000

Digits = tuple[Tensor, Tensor]
Trainer = Callable[[nn.Module, Digits, int], Callable[[], float]]
"""Trains a model for some epochs; returns what computes ε."""


class Row(NamedTuple):
    """What one of the two ends with."""

    loss: float
    accuracy: float
    epsilon: float
    milliseconds: float
    """Of processor time for a step."""


def new_model() -> nn.Module:
    """A small CNN; the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=5, stride=2), nn.Tanh(),
        nn.Conv2d(8, 16, kernel_size=5, stride=2), nn.Tanh(),
        nn.Flatten(), nn.Linear(16 * 4 * 4, 10),
    )  # fmt: skip


def with_opacus(model: nn.Module, digits: Digits, epochs: int) -> Callable[[], float]:
    """Train as Opacus' users do."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    engine = PrivacyEngine(accountant="prv")
    private, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(*digits), batch_size=BATCH),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP,
        poisson_sampling=True,
    )
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            cross_entropy(private(inputs), targets).backward()
            optimizer.step()
    return lambda: engine.get_epsilon(DELTA)


def with_gradveil(model: nn.Module, digits: Digits, epochs: int) -> Callable[[], float]:
    """Train with `PrivateNoise`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    defense = gradveil.PrivateNoise(NOISE_MULTIPLIER, CLIP, batch_size=BATCH)
    inputs, targets = digits
    rate = BATCH / len(inputs)
    account = PrivacyAccount(NOISE_MULTIPLIER, rate, DELTA, neighbours="zero-out")  # made from n
    generator = SecureGenerator()
    for _ in range(epochs * round(1 / rate)):
        account.step()  # counted before anything is released
        chosen = poisson_sample(len(inputs), rate, generator)
        optimizer.zero_grad()
        defense.backward(model, cross_entropy, inputs[chosen], targets[chosen], generator)
        optimizer.step()
    return account.epsilon


def train(trainer: Trainer, digits: Digits, held_out: Digits, epochs: int) -> Row:
    """Train a new model, and see what it learned."""
    model, started = new_model(), time.process_time()
    epsilon = trainer(model, digits, epochs)
    seconds = time.process_time() - started
    inputs, targets = held_out
    with torch.no_grad():
        outputs = model(inputs)
    loss = cross_entropy(outputs, targets).item()
    accuracy = (outputs.argmax(1) == targets).double().mean().item()
    steps = epochs * round(len(digits[0]) / BATCH)
    return Row(loss, accuracy, epsilon(), 1000 * seconds / steps)


def main() -> None:
    """Train with both, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    data = gradveil.load_dataset("mnist")
    digits = data.inputs[:-HELD_OUT], data.targets[:-HELD_OUT]
    held_out = data.inputs[-HELD_OUT:], data.targets[-HELD_OUT:]
    print(f"{'':12}  loss  accuracy      ε  ms a step")
    warnings.simplefilter("ignore")  # Opacus' hooks, and that its noise is not secure by default
    for name, trainer in (("Opacus", with_opacus), ("PrivateNoise", with_gradveil)):
        row = train(trainer, digits, held_out, epochs)
        print(
            f"{name:12}{row.loss:6.3f}{row.accuracy:10.3f}{row.epsilon:7.3f}{row.milliseconds:11.1f}"
        )


if __name__ == "__main__":
    main()

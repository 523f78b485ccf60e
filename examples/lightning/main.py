"""A Lightning module whose gradients are defended: one line of the training step changes."""

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import gradveil

PUBLIC, HELD_OUT = 128, 500


class DefendedClassifier(lightning.LightningModule):
    """A classifier that learns from what a defense lets through.

    The training loss is not logged: it would tell of the private data.
    """

    def __init__(self, model: nn.Module, defense: gradveil.Defense, lr: float) -> None:
        super().__init__()
        self.model, self.defense, self.lr = model, defense, lr
        self.automatic_optimization = False  # the defense takes the place of loss.backward()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """One step on the defended gradient of a batch."""
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.defense.backward(self.model, cross_entropy, *batch)
        optimizer.step()

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Loss and accuracy on public examples."""
        inputs, targets = batch
        outputs = self.model(inputs)
        self.log("loss", cross_entropy(outputs, targets))
        self.log("accuracy", (outputs.argmax(1) == targets).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any optimizer of torch."""
        return torch.optim.Adam(self.model.parameters(), lr=self.lr)


def main() -> None:
    """Train on digits, and print what was learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    data = gradveil.load_dataset("mnist")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    public, held_out, private = order.split([PUBLIC, HELD_OUT, len(data) - PUBLIC - HELD_OUT])
    examples = data.inputs[public], data.targets[public]
    defense = gradveil.OptimalNoise(scale=0.01, source=gradveil.Public(examples, refresh_every=20))
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.GELU(), nn.Linear(64, 10))
    module = DefendedClassifier(network, defense, lr=1e-3)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = TensorDataset(data.inputs[private], data.targets[private])
    test = TensorDataset(data.inputs[held_out], data.targets[held_out])
    trainer.fit(module, DataLoader(train, batch_size=32, shuffle=True))
    (found,) = trainer.test(module, DataLoader(test, batch_size=HELD_OUT), verbose=False)
    print(f"after {steps} steps: loss {found['loss']:.3f}, accuracy {found['accuracy']:.3f}")


if __name__ == "__main__":
    main()

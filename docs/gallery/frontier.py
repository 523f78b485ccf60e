"""
The frontier of four defenses
=============================

What a defense hides, against what it costs. Each point is one strength of one defense: the loss
on held-out digits after 60 defended steps of training, and how well the attacker who knows the
defense rebuilds single images (a blind guess has 12 dB). Down and to the left is better. The
model is a perceptron; this script takes some minutes and is not run when the site is built; it
writes the figure.

.. image:: /images/frontier.png
   :alt: PSNR of reconstructions against the loss after training, for noise and pruning
"""

# sphinx_gallery_thumbnail_path = 'images/frontier.png'
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import gradveil
from gradveil.attacks import Adaptive, InvertingGradients, ThreatModel, observe
from gradveil.models import build_model
from gradveil.scoring import score

data = gradveil.load_dataset("mnist")
public, held_out = data.batch(2000, 128), data.batch(4000, 512)
defenses = {
    "noise": [gradveil.GradientNoise(scale) for scale in (0.003, 0.01, 0.03, 0.1)],
    "optimal noise, public plan": [
        gradveil.OptimalNoise(scale, source=gradveil.Public(public))
        for scale in (0.003, 0.01, 0.03, 0.1)
    ],
    "pruning": [gradveil.GradientPruning(ratio) for ratio in (0.5, 0.8, 0.95, 0.99)],
    "optimal pruning, public plan": [
        gradveil.OptimalPruning(ratio, source=gradveil.Public(public))
        for ratio in (0.5, 0.8, 0.95, 0.99)
    ],
}


def new_model():
    """The same untrained perceptron every time."""
    return build_model("mlp", sizes=[784, 32, 10], seed=0)


def cost(defense):
    """The loss on held-out digits after 60 defended steps."""
    model, draw = new_model(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(60):
        inputs, targets = data.batch(100 + 16 * step, 16)
        optimizer.zero_grad()
        defense.backward(model, cross_entropy, inputs, targets, generator=draw)
        optimizer.step()
    return cross_entropy(model(held_out[0]), held_out[1]).item()


def leakage(defense):
    """The mean PSNR of four single images, rebuilt by the attacker who knows the defense."""
    unaware = InvertingGradients(steps=100, total_variation=1e-2)
    attack, model = Adaptive(unaware, finish=None), new_model()
    draw = torch.Generator().manual_seed(0)
    found = []
    for place in range(4):
        private = data.batch(place, 1)
        observation = observe(
            model,
            cross_entropy,
            private,
            defense,
            threat=ThreatModel(mechanism="known"),
            num_classes=10,
            input_range=data.range,
            generator=draw,
        )
        found.append(float(score(attack(observation, draw), private, normalization=data).psnr))
    return sum(found) / len(found)


# %%
figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
for name, strengths in defenses.items():
    points = [(cost(defense), leakage(defense)) for defense in strengths]
    print(name, [(round(x, 2), round(y, 1)) for x, y in points], flush=True)
    axes.plot(*zip(*points, strict=True), marker="o", label=name)
axes.axhline(12, color="grey", linestyle=":", label="blind guess")
axes.axvline(
    cost(gradveil.NoDefense()), color="grey", linestyle="--", label="loss without a defense"
)
axes.set(xlabel="loss after 60 steps", ylabel="PSNR of single images, dB")
axes.legend()

if __name__ == "__main__":
    target = Path(__file__).parents[1] / "images" / "frontier.png"
    figure.savefig(target, dpi=110, metadata={"Software": None})

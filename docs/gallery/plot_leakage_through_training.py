"""
Leakage through training
========================

A model that has learned its examples has small gradients for them, and noise of a fixed size
hides small gradients better. So leakage falls through training, and the first rounds are the ones
to worry about. Here a perceptron learns digits. At some steps 32 clients send the gradient of one
image each, with little noise, and the analytic attack divides the image out of it.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import gradveil
from gradveil.attacks import Analytic, observe
from gradveil.models import build_model
from gradveil.scoring import score

data = gradveil.load_dataset("mnist")
model = build_model("mlp", sizes=[784, 32, 10], seed=0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
noise = gradveil.GradientNoise(scale=1e-3)
checkpoints = [0, 10, 30, 100, 300]
draw = torch.Generator().manual_seed(0)


def rebuilt(place: int) -> float:
    """PSNR of one private image, from its gradient alone."""
    private = data.batch(place, 1)
    observation = observe(
        model, cross_entropy, private, noise, num_classes=10, input_range=data.range, generator=draw
    )
    return float(score(Analytic()(observation, draw), private, normalization=data).psnr)


# %%
# Training uses other images than the ones that are attacked.

found = []
for step in range(checkpoints[-1] + 1):
    if step in checkpoints:
        found.append([rebuilt(place) for place in range(32)])
    inputs, targets = data.batch(1000 + 8 * step, 8)
    optimizer.zero_grad()
    cross_entropy(model(inputs), targets).backward()
    optimizer.step()

# %%
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
axes.boxplot(found, tick_labels=[str(step) for step in checkpoints])
axes.axhline(22, color="grey", linestyle=":", label="near copies begin")
axes.axhline(12, color="grey", linestyle="--", label="the mean image")
axes.set(xlabel="steps of training", ylabel="PSNR of 32 images, dB")
axes.legend()
plt.show()

"""
An audit of a table
===================

Rows of a table are private data like any other. ``TabLeak`` rebuilds them from a gradient:
numbers and categories. A column counts as found if its category is right, or its number is within
a third of a standard deviation. Here four rows with three numbers and two categories pass through
a small perceptron, and noise grows from left to right.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import gradveil
from gradveil.attacks import TabLeak, ThreatModel, observe
from gradveil.data import TableLayout
from gradveil.models import build_model
from gradveil.scoring import score_table

layout = TableLayout.of(continuous=3, categories=[4, 2])
draw = torch.Generator().manual_seed(0)
numbers = torch.randn(300, 3, generator=draw)
categories = torch.stack([torch.randint(size, (300,), generator=draw) for size in (4, 2)], dim=1)
rows = layout.encode(numbers, categories)
targets = (numbers[:, 0] + categories[:, 1] > 0.5).long()
private, public = (rows[:4], targets[:4]), rows[4:]
model = build_model("mlp", sizes=[layout.width, 32, 32, 2], activation="relu", seed=0)

# %%
# The attacker knows the defense. The dotted line is a blind guess: the means and the most frequent
# categories of other rows.

scales = [0.0, 0.003, 0.01, 0.03, 0.1]
found = []
for scale in scales:
    defense = gradveil.GradientNoise(scale) if scale else gradveil.NoDefense()
    observation = observe(
        model,
        cross_entropy,
        private,
        defense,
        threat=ThreatModel(mechanism="known"),
        num_classes=2,
        layout=layout,
        generator=torch.Generator().manual_seed(1),
    )
    attack = TabLeak(steps=100, starts=4, lr=0.2)
    rebuilt = attack(observation, torch.Generator().manual_seed(0))
    found.append(score_table(rebuilt, private[0], layout))
    print(f"noise {scale:<6} {found[-1].summary()}")

# %%
blind = score_table(layout.guess(public).expand(4, -1), private[0], layout)
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.plot(range(len(scales)), [float(each.accuracy.mean()) for each in found], marker="o")
axes.axhline(float(blind.accuracy.mean()), color="grey", linestyle=":", label="blind guess")
axes.set_xticks(range(len(scales)), scales)
axes.set(xlabel="scale of the noise", ylabel="share of the columns found", ylim=(0, 1.05))
axes.legend()
plt.show()

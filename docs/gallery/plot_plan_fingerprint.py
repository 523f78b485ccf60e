"""
The fingerprint of a plan
=========================

The paper plans its noise from the private batch. Then the *size* of the noise at each parameter
is a fingerprint of the batch, and more noise does not blur it. An attacker who knows the defense
and has eight candidates for an image picks the right one at any scale. A plan that is made from
the model alone stops telling when the noise hides the gradient, as isotropic noise does.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import gradveil
from gradveil.attacks import identify_trials
from gradveil.models import build_model

data = gradveil.load_dataset("mnist")
model = build_model("mlp", sizes=[784, 32, 10], seed=0)
examples = data.batch(0, 400)
scales = [0.03, 0.3, 3.0, 30.0]


def rate(defense):
    """How often the right one of eight candidates is the most likely one, with its interval."""
    report = identify_trials(
        model,
        cross_entropy,
        examples,
        defense,
        num_classes=10,
        candidates=8,
        trials=24,
        per_draw=8,
        generator=torch.Generator().manual_seed(0),
    )
    return report.rate


plans = {
    "from the private batch": lambda s: gradveil.OptimalNoise(scale=s, source="private"),
    "from the model alone": lambda s: gradveil.OptimalNoise(scale=s),
    "isotropic": lambda s: gradveil.GradientNoise(scale=s),
}

# %%
# 24 messages for each point. The intervals are exact for so many trials.

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for name, make in plans.items():
    found = [rate(make(scale)) for scale in scales]
    below = [each.mean - each.low for each in found]
    above = [each.high - each.mean for each in found]
    axes.errorbar(
        scales, [each.mean for each in found], (below, above), marker="o", capsize=3, label=name
    )
axes.axhline(1 / 8, color="grey", linestyle=":", label="chance")
axes.set(xscale="log", xlabel="scale of the noise", ylabel="right candidate found", ylim=(0, 1.05))
axes.legend()
plt.show()

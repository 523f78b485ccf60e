"""
An audit of a text classifier
=============================

The gradient of a text model shows which tokens were read: rows of its embedding that are not 0.
That is a bag of words; ``SpanCheck`` also puts the words into their order. Here two short
sequences pass through a small transformer, under no defense, under noise, and under private
noise, which clips each sequence's gradient first.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import gradveil
from gradveil.attacks import SpanCheck, ThreatModel, observe, score_tokens
from gradveil.models import TokenTransformer

WORDS = "the a bank loan was late again and nobody paid my rent in june please call me back".split()
torch.manual_seed(0)
model = TokenTransformer(tokens=len(WORDS), length=8, width=32).eval()
ids = torch.tensor([[0, 2, 3, 4, 5, 6], [14, 15, 16, 17, 7, 9]])
targets = torch.tensor([0, 1])
defenses = {
    "none": gradveil.NoDefense(),
    "noise 0.001": gradveil.GradientNoise(0.001),
    "noise 0.1": gradveil.GradientNoise(0.1),
    "private noise": gradveil.PrivateNoise(noise_multiplier=1.0, clip=0.1, batch_size=2),
}

# %%
# What comes back, and how much of it is right.

accuracy = []
for name, defense in defenses.items():
    observation = observe(
        model,
        cross_entropy,
        (ids, targets),
        defense,
        threat=ThreatModel(mechanism="known"),
        num_classes=2,
        generator=torch.Generator().manual_seed(1),
    )
    found = SpanCheck(time_budget=3)(observation, torch.Generator().manual_seed(0))
    scores = score_tokens(found, ids)
    accuracy.append(float(scores.accuracy.mean()))
    print(
        f"{name:14}", " | ".join(" ".join(WORDS[i] for i in row) for row in found.inputs.tolist())
    )

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.bar(list(defenses), accuracy)
axes.set(ylabel="share of the tokens in place", ylim=(0, 1.05))
plt.show()

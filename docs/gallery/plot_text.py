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
from gradveil.attacks import SpanCheck, ThreatModel, observe
from gradveil.models import TokenTransformer
from gradveil.scoring import score_tokens

private = ["the bank loan was late again", "please call me back in june"]
others = ["nobody paid my rent", "a loan and a bank"]
words = sorted({word for sentence in private + others for word in sentence.split()})
ids = torch.tensor([[words.index(word) for word in sentence.split()] for sentence in private])
torch.manual_seed(0)
model = TokenTransformer(tokens=len(words), length=8, width=32).eval()
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
    rebuilt = [" ".join(words[i] for i in row) for row in found.inputs.tolist()]
    print(f"{name:14}", " | ".join(rebuilt))

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.bar(list(defenses), accuracy)
axes.set(ylabel="share of the tokens in place", ylim=(0, 1.05))
plt.show()

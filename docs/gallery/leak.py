"""
What comes back from a gradient
===============================

Four digits, one gradient of the paper's CNN, and what an attacker makes of it: without a defense,
and behind noise of two strengths that was planned from public examples. The attacker knows the
defense. This script takes minutes and is not run when the site is built; it writes the figure.

.. image:: /images/leak.png
   :alt: Four digits, their near copies from an undefended gradient, and blurs behind noise
"""

# sphinx_gallery_thumbnail_path = 'images/leak.png'
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import gradveil
from gradveil.attacks import Adaptive, InvertingGradients, ThreatModel, observe
from gradveil.models import build_model
from gradveil.scoring import score

data = gradveil.load_dataset("mnist")
model = build_model("simple-conv-net", seed=0)
batch, public = data.batch(0, 4), data.batch(2000, 128)
unaware = InvertingGradients(steps=120, total_variation=1e-2)
knowing = Adaptive(unaware, finish=None)
cases = {
    "no defense": (gradveil.NoDefense(), InvertingGradients.strong(steps=120)),
    "noise 0.02": (gradveil.OptimalNoise(0.02, source=gradveil.Public(public)), knowing),
    "noise 0.1": (gradveil.OptimalNoise(0.1, source=gradveil.Public(public)), knowing),
}

# %%
# ``observe`` plays the client and returns all that the attacker gets: the model, what was sent, and
# what the threat model grants him.

rows = [("private images", batch[0])]
for name, (defense, attack) in cases.items():
    observation = observe(
        model,
        cross_entropy,
        batch,
        defense,
        threat=ThreatModel(mechanism="known"),
        num_classes=10,
        input_range=data.range,
        generator=torch.Generator().manual_seed(1),
    )
    found = attack(observation, torch.Generator().manual_seed(0))
    scores = score(found, batch, normalization=data)
    rows.append((f"{name}\n{float(scores.psnr.mean()):.0f} dB", found.inputs[scores.assignment]))
    print(f"{name}: {float(scores.psnr.mean()):.1f} dB", flush=True)

# %%
# Rebuilt images stand under the private ones that they match best.

figure, grid = plt.subplots(len(rows), 4, figsize=(5.2, 4.6), layout="constrained")
for line, (name, images) in zip(grid, rows, strict=True):
    line[0].set_ylabel(name, rotation=0, ha="right", va="center", labelpad=10)
    for axes, image in zip(line, data.to_pixels(images).clamp(0, 1), strict=True):
        axes.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])

if __name__ == "__main__":
    target = Path(__file__).parents[1] / "images" / "leak.png"
    figure.savefig(target, dpi=130, metadata={"Software": None})

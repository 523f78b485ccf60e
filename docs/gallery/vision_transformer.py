"""
An audit of a vision transformer
================================

``gradveil.audit`` takes any model. Here it is a small vision transformer on MNIST digits: GELU
and no pooling, so that its gradient is smooth. This script takes some minutes and is not run when
the site is built; it writes the figure.

.. image:: /images/vision-transformer.png
   :alt: PSNR of the reconstructions behind each defense, and how often candidates are told apart
"""

# sphinx_gallery_thumbnail_path = 'images/vision-transformer.png'
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import gradveil
from gradveil.models import PatchTransformer

data = gradveil.load_dataset("mnist")
torch.manual_seed(0)
model = PatchTransformer(width=32, depth=1, heads=2, patch=7, image=28, num_channels=1).eval()

# %%
# Four clients with one image each. Both kinds of noise make a training step vary equally (U2).

subject = gradveil.audit.Subject(
    model, cross_entropy, data.batch(0, 4), data.batch(1000, 256), normalization=data
)
settings = gradveil.audit.Settings(
    ["gradient-noise(scale=0.0475854)", "optimal-noise(scale=0.0555796)"],
    steps=150,
    training_seeds=0,
)
result = gradveil.audit.run(subject, gradveil.audit.Federation(batch_size=1), settings)
for defense in result.defenses:
    print(f"{defense.name}: {defense.verdict}\n", flush=True)

# %%
# Left: the attacker who does not know the defense, and the one who does. Neither is better than
# a blind guess, even without a defense. That says nothing for a defense, and the audit says so.
# Right: the attacker who has 32 candidates. He finds the right one every time.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
names = [defense.name for defense in result.defenses]
for offset, knows in ((-0.2, False), (0.2, True)):
    runs = [
        next((run for run in defense.attacks if run.knows_defense == knows), defense.attacks[0])
        for defense in result.defenses
    ]
    places = [place + offset for place in range(len(names))]
    label = "knows the defense" if knows else "does not know it"
    left.bar(places, [run.psnr.mean for run in runs], 0.38, label=label)
left.set_xticks(range(len(names)), names)
left.set(ylabel="PSNR, mean of four images, dB", ylim=(0, 20))
left.legend()
right.bar(names, [defense.told_apart.rate.mean for defense in result.defenses], 0.5)
right.axhline(1 / 32, color="grey", linestyle=":", label="chance")
right.set(ylabel="right one of 32 candidates", ylim=(0, 1.05))
right.legend()

if __name__ == "__main__":
    target = Path(__file__).parents[1] / "images" / "vision-transformer.png"
    figure.savefig(target, dpi=110, metadata={"Software": None})

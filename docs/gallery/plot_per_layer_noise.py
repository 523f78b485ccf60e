"""
How much noise each layer gets
==============================

Isotropic noise treats all parameters alike. Optimal noise puts more of it where the message
reacts strongly to the data, and less where the gradient is large and training would suffer. Both
plans below have the same utility; the figure shows where they put their noise.
"""

import matplotlib.pyplot as plt
from torch.nn.functional import cross_entropy

import gradveil
from gradveil.models import build_model

data = gradveil.load_dataset("mnist")
model = build_model("simple-conv-net", seed=0)

# %%
# Moments say two things of each parameter: how large its gradient is, and how strongly it reacts to
# the inputs. They are measured on public examples here, so that the plan says nothing of private
# ones.

inputs, targets = data.batch(2000, 16)
message = gradveil.GradientMessage(model, cross_entropy, targets)
moments = gradveil.measure(message, inputs)
plans = {
    "isotropic": gradveil.GradientNoise(utility_budget=1e-4).plan(moments),
    "optimal": gradveil.OptimalNoise(utility_budget=1e-4).plan(moments),
}
for name, plan in plans.items():
    print(f"{name:10} {gradveil.utility(message(inputs), plan)}")

# %%
# One bar for each tensor: the root mean square of its noise. Biases and weights of one layer can
# differ by much.

names = list(moments.squared_values)
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for offset, (name, plan) in zip((-0.2, 0.2), plans.items(), strict=True):
    levels = [float(plan.std[tensor].square().mean().sqrt()) for tensor in names]
    axes.barh([place + offset for place in range(len(names))], levels, 0.38, label=name)
axes.set_yticks(range(len(names)), names)
axes.invert_yaxis()
axes.set(xscale="log", xlabel="noise (root mean square of the standard deviations)")
axes.legend()
plt.show()

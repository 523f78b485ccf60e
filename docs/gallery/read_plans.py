"""
An image read off noise levels
==============================

The paper's plan puts noise where the private image asks for it. At a noise scale of 100, which
hides the gradient altogether, the levels alone give the image back: better the wider the first
layer is. The attacker knows the range of the inputs. This script takes minutes and is not run when
the site is built; it prints the mean squared error for each width (eight single
images, 95 % intervals).
"""

import statistics

import torch
from torch.nn.functional import cross_entropy

import gradveil
from gradveil.attacks import PlanReader, ThreatModel, observe
from gradveil.models import MLP

data = gradveil.load_dataset("mnist", limit=8)
defense = gradveil.OptimalNoise(scale=100.0, source="private")
for width in (128, 64, 32, 16):
    torch.manual_seed(0)
    model, errors = MLP([784, width, 10]), []
    for number in range(8):
        batch = data.batch(number, 1)
        seen = observe(
            model,
            cross_entropy,
            batch,
            defense,
            threat=ThreatModel(mechanism="known"),
            num_classes=10,
            input_range=data.range,
            generator=torch.Generator().manual_seed(number),
        )
        found = PlanReader()(seen, torch.Generator().manual_seed(number))
        errors.append(float((found.inputs - batch[0]).square().mean()))
    half = 2.36 * statistics.stdev(errors) / 8**0.5
    print(f"width {width}: {statistics.mean(errors):.3f} ± {half:.3f}")

"""The audit from Python: what leaks of two private images, with and without a defense."""

from pathlib import Path

import torch
from my_model import build
from torch.nn.functional import cross_entropy

import gradveil
from gradveil.auditing import write_results


def main() -> None:
    """Audit, and write the report."""
    data = gradveil.load_dataset("my_data.npz")
    model = build()
    model.load_state_dict(torch.load("my_weights.pt", weights_only=True))
    result = gradveil.audit(
        model,
        cross_entropy,
        data.batch(0, 2),  # the private batch
        ["no-defense", "optimal-noise"],
        public=data.batch(100, 200),  # examples that nobody has to protect
        normalization=data,  # for pixels in the report
        steps=30,
        training=False,
        seed=0,
        names={"data": "my shapes", "model": "my model"},
    )
    print(f"Report: {write_results(result, Path('report-from-python'))}")


if __name__ == "__main__":
    main()

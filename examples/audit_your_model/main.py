"""The audit from Python: what leaks of two private images, with and without a defense."""

from pathlib import Path

import torch
from my_model import build
from torch.nn.functional import cross_entropy

import gradveil
from gradveil import audit


def main() -> None:
    """Audit, and write the report."""
    data = gradveil.load_dataset("my_data.npz")
    model = build()
    model.load_state_dict(torch.load("my_weights.pt", weights_only=True))
    subject = audit.Subject(
        model,
        cross_entropy,
        data.batch(0, 2),  # the private batch
        public=data.batch(100, 200),  # examples that nobody has to protect
        normalization=data,  # for pixels in the report
        name="my shapes",
        model_name="my model",
    )
    settings = audit.Settings(["optimal-noise(scale=0.01)"], steps=30, training_seeds=0)
    result = audit.run(subject, settings=settings)
    print(f"Report: {audit.write_results(result, Path('report-from-python'))}")


if __name__ == "__main__":
    main()

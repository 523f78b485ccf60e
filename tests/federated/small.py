"""Small clients, models and configurations that real training runs on in milliseconds."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import Defense, NoDefense, load_dataset
from gradveil.federated import Client, FederatedRun, LocalSteps, Server
from gradveil.models import build_model

Tensors = dict[str, Tensor]


def flat_mlp() -> nn.Module:
    """For 28×28 images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.LeakyReLU(), nn.Linear(8, 10))


def image_file(folder: Path, count: int = 256) -> str:
    """The first embedded images as an .npz, which loads in no time."""
    data = load_dataset("mnist", limit=count)
    path = folder / "images.npz"
    np.savez(path, inputs=data.inputs.numpy(), targets=data.targets.numpy())
    return str(path)


def model(seed: int = 0) -> nn.Module:
    return build_model("mlp", seed=seed, sizes=[6, 8, 3])


def examples(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=generator)
    return inputs, torch.randint(3, (count,), generator=generator)


def client(
    identifier: int = 0,
    defense: Defense | None = None,
    *,
    count: int = 10,
    seed: int | None = 0,
    local: LocalSteps | None = None,
    sample_rate: float | None = None,
) -> Client:
    data, options = examples(count, seed=identifier), {"local": local, "sample_rate": sample_rate}
    return Client(identifier, *data, defense or NoDefense(), batch_size=4, seed=seed, **options)


def server(kind: str = "gradient", seed: int = 0) -> Server:
    trained = model(seed)
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.01) if kind == "gradient" else None
    return Server(trained, optimizer, kind)


def run(defense: Defense | None = None, clients: int = 3, **options: object) -> FederatedRun:
    chosen = [client(i, defense) for i in range(clients)]
    return FederatedRun(server(), chosen, cross_entropy, **options)  # type: ignore[arg-type]


def assert_same(first: Tensors, second: Tensors) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name

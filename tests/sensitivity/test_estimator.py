"""Probes, and how many of them are taken at a time."""

import pytest
import torch

from gradveil.sensitivity import chunk_size, draw_probes

pytestmark = pytest.mark.usefixtures("global_rng_watch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probes_are_isotropic(dtype: torch.dtype, generator: torch.Generator) -> None:
    """E[v vᵀ] = I; the error of a mean over 50,000 probes is below 2%."""
    probes = draw_probes(torch.zeros(2, 3, dtype=dtype), 50_000, generator)
    assert probes.dtype == dtype
    assert probes.shape == (50_000, 2, 3)
    flat = probes.flatten(1).double()
    torch.testing.assert_close(
        flat.T @ flat / len(flat), torch.eye(6, dtype=torch.float64), rtol=0, atol=0.02
    )
    assert float(flat.mean(0).abs().max()) < 0.02


@pytest.mark.parametrize(
    ("room", "extra", "expected"),
    [(100, 0, 14), (100, 3, 10), (7, 0, 1), (6, 0, 1), (1, 1000, 1)],
)
def test_chunk_size(room: int, extra: int, expected: int) -> None:
    values = {"weight": torch.zeros(2, 3), "scale": torch.zeros(())}
    assert chunk_size(values, room, extra) == expected

"""Sums of squared derivatives and what they say of their own error."""

import pytest
import torch

from gradveil.sensitivity._estimator import SquareSums, chunk_size, draw_probes

pytestmark = pytest.mark.usefixtures("global_rng_watch")


def normal(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("probes", [1, 2, 10])
def test_the_reported_variance_is_right_on_average(probes: int) -> None:
    """For ∂_v g ~ N(0, s²) the mean of k squares has the variance 2 s⁴/k.

    Over 200,000 entries the mean of the report settles to within some permille (its relative
    standard deviation is 3.3 for one probe); 3 s⁴/k or s⁴/k would be off by a half.
    """
    scale, like = 1.7, {"g": torch.zeros(200_000, dtype=torch.float64)}
    sums = SquareSums(like)
    sums.add({"g": scale * normal(probes, 200_000)})
    _, squares, variances = sums.measurement(like, probes)
    assert variances is not None
    assert float(squares["g"].mean()) == pytest.approx(scale**2, rel=0.01)
    assert float(squares["g"].var()) == pytest.approx(2 * scale**4 / probes, rel=0.03)
    assert float(variances["g"].mean()) == pytest.approx(2 * scale**4 / probes, rel=0.03)


def test_examples_add_up_and_so_do_their_variances() -> None:
    """Four examples of different size, two probes each: Σ_b s_b² and Σ_b 2 s_b⁴/k."""
    scales = torch.tensor([0.1, 1.0, 2.0, 0.5], dtype=torch.float64).repeat(2)
    like = {"g": torch.zeros(100_000, dtype=torch.float64)}
    sums = SquareSums(like)
    for rows in (scales[:, None] * normal(8, 100_000)).split(3):  # chunks that cut through probes
        sums.add({"g": rows})
    _, squares, variances = sums.measurement(like, probes=2)
    assert variances is not None
    expected = float(scales[:4].pow(4).sum()) * 2 / 2
    assert float(squares["g"].mean()) == pytest.approx(float(scales[:4].square().sum()), rel=0.01)
    assert float(squares["g"].var()) == pytest.approx(expected, rel=0.03)
    assert float(variances["g"].mean()) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probes_are_isotropic(kind: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    """E[v vᵀ] = I; the error of a mean over 50,000 probes is below 2%."""
    probes = draw_probes(torch.zeros(2, 3, dtype=dtype), 50_000, kind, generator)
    assert probes.dtype == dtype
    assert probes.shape == (50_000, 2, 3)
    flat = probes.flatten(1).double()
    torch.testing.assert_close(
        flat.T @ flat / len(flat), torch.eye(6, dtype=torch.float64), rtol=0, atol=0.02
    )
    assert float(flat.mean(0).abs().max()) < 0.02


def test_random_signs_are_signs(generator: torch.Generator) -> None:
    probes = draw_probes(torch.zeros(5), 10, "rademacher", generator)
    assert set(probes.flatten().tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize(
    ("max_elements", "extra", "expected"),
    [(100, 0, 14), (100, 3, 10), (7, 0, 1), (6, 0, 1), (1, 1000, 1)],
)
def test_chunk_size(max_elements: int, extra: int, expected: int) -> None:
    values = {"weight": torch.zeros(2, 3), "scale": torch.zeros(())}
    assert chunk_size(values, max_elements, extra) == expected

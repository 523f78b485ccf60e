import math

import pytest
import torch
from scipy import stats

from gradveil import Moments, NonFiniteError, reconstruction_bound
from gradveil.attacks._likelihood import doubt_between
from gradveil.attacks._matching import read
from gradveil.mechanisms import LaplaceMechanism, Mechanism
from gradveil.theory import fisher_trace
from tests.attacks.likelihood import log_likelihood

from .statistics import draws

VALUES = {
    "w": torch.tensor([0.3, -2.0, 0.0], dtype=torch.float64),
    "s": torch.tensor(1.5, dtype=torch.float64),
}
STD = {
    "w": torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64),
    "s": torch.tensor(0.1, dtype=torch.float64),
}


def test_noise_is_laplace_of_the_given_standard_deviation() -> None:
    """And 2/3 or 3/2 of it would be noticed."""
    mechanism = LaplaceMechanism(STD)
    sent = draws(lambda generator: mechanism.apply(VALUES, generator), 4000)
    assert bool((sent["w"][:, 2] == 0).all())
    for residual, std in (
        (sent["w"][:, 0] - 0.3, 0.5),
        (sent["w"][:, 1] + 2.0, 2.0),
        (sent["s"] - 1.5, 0.1),
    ):
        for factor, fits in ((1.0, True), (2 / 3, False), (3 / 2, False)):
            law = stats.laplace(scale=factor * std / math.sqrt(2))
            p = stats.kstest(residual.numpy(), law.cdf).pvalue
            assert p > 1e-4 if fits else p < 1e-6


def test_the_likelihood_is_the_density() -> None:
    sent = {
        "w": torch.tensor([0.1, 1.0, 0.0], dtype=torch.float64),
        "s": torch.tensor(1.7, dtype=torch.float64),
    }
    found = log_likelihood(LaplaceMechanism(STD), VALUES, sent)
    expected = sum(
        stats.laplace(loc=g, scale=s / math.sqrt(2)).logpdf(y)
        for y, g, s in ((0.1, 0.3, 0.5), (1.0, -2.0, 2.0), (1.7, 1.5, 0.1))
    )
    assert float(found) == pytest.approx(expected, rel=1e-12)
    sent["w"][2] = 1e-6  # where there is no noise, nothing else than the value is sent
    assert float(log_likelihood(LaplaceMechanism(STD), VALUES, sent)) < -1e6


def test_it_tells_twice_what_gaussian_noise_of_its_variance_tells() -> None:
    moments = Moments({"w": torch.ones(2)}, {"w": torch.tensor([3.0, 1.0])}, input_size=5)
    laplace, gaussian = LaplaceMechanism(0.5), Mechanism(0.5)
    assert fisher_trace(moments, laplace) == 2 * fisher_trace(moments, gaussian)
    variance = laplace.variance({"w": torch.zeros(2)})["w"]
    assert torch.equal(variance, gaussian.variance({"w": torch.zeros(2)})["w"])

    def message(inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"w": inputs.sum(0)}

    inputs = torch.zeros(1, 3)
    bounds = [reconstruction_bound(message, inputs, m).per_entry for m in (laplace, gaussian)]
    assert bounds == pytest.approx([0.125, 0.25])


def test_it_is_read_as_noise_of_its_variance() -> None:
    mechanism = LaplaceMechanism(STD)
    reading = read(mechanism, VALUES)
    assert torch.equal(reading.std, torch.cat([STD[name].flatten() for name in VALUES]))
    assert torch.equal(reading.low, reading.high)
    assert not bool(reading.silent.any())
    least = float(read(mechanism, VALUES, realised=False).std.min())
    assert least == pytest.approx(math.sqrt((0.25 + 4 + 0.01) / 3))
    assert doubt_between(mechanism, mechanism, VALUES).levels_differ is False


def test_bad_values() -> None:
    with pytest.raises(NonFiniteError, match="values"):
        LaplaceMechanism(1.0).apply({"w": torch.tensor([math.nan])})
    with pytest.raises(ValueError, match="`std` should be finite"):
        LaplaceMechanism(-1.0)
    with pytest.raises(ValueError, match="names of `values`"):
        LaplaceMechanism(STD).apply({"w": torch.zeros(3)})

import pytest
import torch

from gradveil import GaussianPrior, NonFiniteError
from gradveil.theory import trace_error
from tests.mechanisms.statistics import assert_mean

from .oracles import batch_precision, global_generator_untouched, normal, seeded, spread_prior


def test_fit_is_mean_and_covariance_with_a_ridge() -> None:
    samples = normal(50, 2, 2)
    prior = GaussianPrior.fit(samples, ridge=0.3)
    flat = samples.flatten(1)
    centred = flat - flat.mean(0)
    torch.testing.assert_close(prior.mean, flat.mean(0))
    expected = centred.T @ centred / 49 + 0.3 * torch.eye(4).double()
    torch.testing.assert_close(prior.covariance, expected)
    assert prior.name == "Gaussian fitted to 50 samples"


def test_entries_that_do_not_vary_keep_no_variance() -> None:
    samples = normal(20, 3)
    samples[:, 1] = 7.0
    assert 0 < GaussianPrior.fit(samples).covariance[1, 1] < 1e-9
    assert GaussianPrior.fit(samples, ridge=0.01).covariance[1, 1] == pytest.approx(0.01)
    with pytest.raises(ValueError, match=r"`covariance` should be positive definite.*`ridge`"):
        GaussianPrior.fit(torch.ones(3, 3))


def test_fewer_samples_than_entries() -> None:
    """Rank 9 of 40: the other 31 directions have no variance that the samples show."""
    prior = GaussianPrior.fit(normal(10, 40))
    assert bool((prior.variances[:9] > 1e-3).all())
    assert float(prior.variances[9:].sum()) < 1e-6


def test_labels_leave_the_covariance_within_classes() -> None:
    samples, labels = normal(60, 4), torch.arange(60) % 3
    means = torch.stack([samples[labels == c].mean(0) for c in range(3)])
    inside = samples - means[labels]
    prior = GaussianPrior.fit(samples + 10 * labels[:, None], labels=labels + 5)
    torch.testing.assert_close(prior.covariance, inside.T @ inside / 57)
    assert prior.name == "Gaussian within classes fitted to 60 samples"
    with pytest.raises(ValueError, match=r"one class for each of 60 samples.*\(3,\)"):
        GaussianPrior.fit(samples, labels=labels[:3])
    with pytest.raises(ValueError, match="60 classes of 60 samples"):
        GaussianPrior.fit(samples, labels=torch.arange(60))


@pytest.mark.parametrize("count", [8, 30, 300])
def test_a_fit_claims_no_more_than_the_covariance_of_the_population(count: int) -> None:
    """tr (J + C⁻¹)⁻¹ is concave in C: the mean over samples is below the exact posterior error."""
    exact, draws = spread_prior(8), seeded(4)
    seen = normal(8, 8, seed=3)
    information = seen @ seen.T

    def error(prior: GaussianPrior) -> float:
        return float((information + prior.covariance.inverse()).inverse().trace())

    fits = [GaussianPrior.fit(exact.sample(count, draws)) for _ in range(40)]
    errors = torch.tensor([error(prior) for prior in fits], dtype=torch.float64)
    spread = float(errors.std()) / 40**0.5
    assert float(errors.mean()) < error(exact) + 2 * spread
    if count == 300:
        assert float(errors.mean()) == pytest.approx(error(exact), rel=0.05)


def test_roots_of_the_covariance() -> None:
    prior, rows = spread_prior(), normal(4, 6)
    blocks = torch.block_diag(prior.root, prior.root)
    torch.testing.assert_close(blocks @ blocks.T, torch.block_diag(*[prior.covariance] * 2))
    torch.testing.assert_close(prior.from_white(rows), rows @ blocks.T)
    torch.testing.assert_close(prior.from_white(rows, transposed=True), rows @ blocks)


@pytest.mark.parametrize("trace", [0.0, 0.3, 50.0])
def test_leading_directions_give_a_bound_below_the_full_one(trace: float) -> None:
    """Against all k, and against tr (J_D + J_P)⁻¹ for information that is spread at random."""
    prior = GaussianPrior(torch.zeros(4), torch.diag(torch.tensor([4.0, 1.0, 0.5, 1e-8])))
    each = [(2 * k) ** 2 / (trace + 2 * sum([0.25, 1, 2, 1e8][:k])) for k in (1, 2, 3, 4)]
    assert trace_error(trace, 8, prior) == pytest.approx(max(each), rel=1e-6)
    entries, known = prior.leading(8, trace)
    assert entries**2 / (trace + known) == pytest.approx(max(each), rel=1e-6)
    root = normal(8, 8, seed=7)
    data = root @ root.T
    data *= trace / data.trace()
    full = float((data + batch_precision(prior, 8)).inverse().trace())
    assert 0 < trace_error(trace, 8, prior) < full
    allowed = prior.allowed_trace(8, trace_error(trace, 8, prior))
    assert allowed == pytest.approx(trace, abs=1e-5)


def test_one_entry() -> None:
    prior = GaussianPrior.fit(torch.tensor([[1.0], [3.0]]))
    assert (float(prior.mean), float(prior.covariance)) == (2.0, pytest.approx(2.0))
    assert float(prior.precision) == pytest.approx(0.5)


def test_information_is_the_inverse_of_the_covariance() -> None:
    prior = spread_prior()
    torch.testing.assert_close(prior.precision, prior.covariance.inverse())


def test_samples_have_its_mean_and_covariance() -> None:
    prior = spread_prior()
    samples = prior.sample(5000, seeded())
    assert_mean(samples, prior.mean)
    centred = samples - prior.mean
    assert_mean(centred.unsqueeze(1) * centred.unsqueeze(2), prior.covariance)
    with global_generator_untouched():
        assert torch.equal(prior.sample(3, seeded(1)), prior.sample(3, seeded(1)))


def test_single_precision_is_taken() -> None:
    prior = GaussianPrior.fit(normal(30, 3).float())
    exact = GaussianPrior.fit(normal(30, 3))
    torch.testing.assert_close(prior.precision, exact.precision, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mean", "covariance", "text"),
    [
        (torch.zeros(2), torch.eye(3), r"shapes \(n,\) and \(n, n\). Found \(2,\) and \(3, 3\)"),
        (torch.zeros(1, 2), torch.eye(2), r"shapes \(n,\) and \(n, n\). Found \(1, 2\)"),
        (torch.zeros(2), -torch.eye(2), "`covariance` should be positive definite"),
        (torch.zeros(2), torch.ones(2, 2), "`covariance` should be positive definite"),
        (torch.zeros(2), torch.zeros(2, 2), "`covariance` should be positive definite"),
        (
            torch.zeros(2),
            torch.tensor([[1.0, 0.5], [0.0, 1.0]]),
            "`covariance` should be symmetric. Found entries that differ by 0.5",
        ),
    ],
)
def test_bad_parameters(mean: torch.Tensor, covariance: torch.Tensor, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        GaussianPrior(mean, covariance)


def test_parameters_that_are_not_finite() -> None:
    nan = float("nan")
    with pytest.raises(NonFiniteError, match=r"Parameter `mean` should be finite. Found 1 of 2"):
        GaussianPrior(torch.tensor([0.0, nan]), torch.eye(2))
    with pytest.raises(NonFiniteError, match=r"Parameter `covariance` should be finite. Found 4"):
        GaussianPrior(torch.zeros(2), torch.full((2, 2), nan))


def test_bad_samples() -> None:
    with pytest.raises(ValueError, match=r"`samples` should hold at least 2.*\(1, 3\)"):
        GaussianPrior.fit(torch.zeros(1, 3))
    with pytest.raises(NonFiniteError, match="`samples` should be finite"):
        GaussianPrior.fit(torch.full((3, 3), float("nan")))
    with pytest.raises(TypeError, match="`samples` should be floating point"):
        GaussianPrior.fit(torch.zeros(3, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"Parameter `ridge`.*-0.1"):
        GaussianPrior.fit(torch.zeros(3, 3), ridge=-0.1)


def test_a_size_that_is_no_number_of_examples() -> None:
    for use in (spread_prior().leading, spread_prior().allowed_trace):
        with pytest.raises(ValueError, match=r"`prior`.*3 entries and inputs of 7"):
            use(7, 1.0)


@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_on_the_device_of_the_rows(transposed: bool):
    """A device without memory stands for any other than that of the prior."""
    prior = GaussianPrior(torch.zeros(2), torch.eye(2))
    rows = torch.ones(3, 4, device="meta", dtype=torch.float32)
    product = prior.from_white(rows, transposed)
    assert (product.device.type, product.dtype) == ("meta", torch.float32)
    assert product.shape == (3, 4)


def test_pooled_classes_of_different_spread_err_upwards() -> None:
    """The direction that the docstring states: the mean over classes is below the pooled bound."""
    spreads, information = (0.1, 2.0), 4.0
    draws = torch.Generator().manual_seed(0)
    samples = torch.cat([s * torch.randn(4000, 1, generator=draws) for s in spreads]).double()
    labels = torch.arange(2).repeat_interleave(4000)
    pooled = GaussianPrior.fit(samples, labels=labels)
    bound = 1 / (information + float(pooled.precision))
    exact = sum(1 / (information + s**-2) for s in spreads) / 2
    assert bound > 1.3 * exact

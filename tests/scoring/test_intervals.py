import pytest
import torch

from gradveil.scoring import bootstrap_interval


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough resamples to tell coverage by."""
    monkeypatch.setattr("gradveil.scoring._intervals.RESAMPLES", 1000)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_covers_the_mean_as_often_as_it_says() -> None:
    draws = seeded(1)
    hits = 0
    for _ in range(200):
        values = torch.randn(40, generator=draws)
        found = bootstrap_interval(values, generator=draws)
        hits += found.low <= 0 <= found.high
    assert 0.90 <= hits / 200 <= 0.99


def coverage(groups: int, percentile: bool) -> float:
    """How often the interval of so many normal numbers holds their mean, 0."""
    draws, hits, trials = seeded(7), 0, 400
    for _ in range(trials):
        values = torch.randn(groups, generator=draws, dtype=torch.float64)
        if percentile:
            chosen = torch.randint(groups, (1000, groups), generator=draws)
            tails = torch.tensor([0.025, 0.975], dtype=torch.float64)
            low, high = torch.quantile(values[chosen].mean(1), tails).tolist()
        else:
            found = bootstrap_interval(values, generator=draws)
            low, high = found.low, found.high
        hits += low <= 0 <= high
    return hits / trials


@pytest.mark.parametrize("groups", [2, 3, 4, 5, 6, 8, 12])
def test_few_groups_are_covered_as_often_as_it_says(groups: int) -> None:
    """Within three standard errors of 95 %; six groups reach 93 %."""
    assert 0.90 <= coverage(groups, percentile=False) <= 0.985


@pytest.mark.parametrize("groups", [2, 3, 4, 5, 6])
def test_a_percentile_interval_of_few_groups_fails_that(groups: int) -> None:
    assert coverage(groups, percentile=True) < 0.90


def test_four_values_have_student_s_interval() -> None:
    found = bootstrap_interval(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    half = 3.1824463 * 1.2909944 / 2  # t of 3 degrees of freedom, s, √4
    assert found.mean == 2.5
    assert found.high == pytest.approx(2.5 + half)
    assert found.low == pytest.approx(2.5 - half)


def test_one_value_is_its_own_interval() -> None:
    found = bootstrap_interval([[torch.tensor([3.0])]])
    assert (found.mean, found.low, found.high) == (3.0, 3.0, 3.0)


def test_a_single_group_stands_for_what_it_holds() -> None:
    values = torch.linspace(0, 1, 9)
    alone = bootstrap_interval([[values]], generator=seeded())
    assert alone == bootstrap_interval(values, generator=seeded())


def test_images_of_a_batch_are_not_taken_as_independent() -> None:
    draws = seeded(2)
    batches = [
        torch.randn(1, generator=draws) + 0.1 * torch.randn(16, generator=draws) for _ in range(12)
    ]
    nested = bootstrap_interval(batches, generator=seeded())
    flat = bootstrap_interval(torch.cat(batches), generator=seeded())
    assert nested.mean == pytest.approx(flat.mean)
    assert nested.high - nested.low > 2.5 * (flat.high - flat.low)


def test_three_levels() -> None:
    values = [[torch.tensor([1.0, 2.0]), torch.tensor([3.0])], [torch.tensor([5.0, 7.0])]]
    found = bootstrap_interval(values, generator=seeded())
    assert found.mean == pytest.approx((2.25 + 6.0) / 2)
    assert found.low < found.mean < found.high


def test_same_seed_same_interval_and_global_generator_untouched() -> None:
    before = torch.get_rng_state()
    values = torch.linspace(0, 1, 9)
    assert bootstrap_interval(values, generator=seeded(4)) == bootstrap_interval(
        values, generator=seeded(4)
    )
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "values", [torch.tensor([]), torch.tensor([1.0, torch.nan]), [], torch.ones(2, 2)]
)
def test_unusable_values(values: object) -> None:
    with pytest.raises(ValueError, match="non-empty, finite 1-d tensor"):
        bootstrap_interval(values)  # type: ignore[arg-type]

import pytest
import torch

from gradveil.attacks import bootstrap_interval, paired_interval


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_covers_the_mean_as_often_as_it_says() -> None:
    draws = seeded(1)
    hits = 0
    for _ in range(200):
        values = torch.randn(40, generator=draws)
        found = bootstrap_interval(values, level=0.9, resamples=400, generator=draws)
        hits += found.low <= 0 <= found.high
    assert 0.83 <= hits / 200 <= 0.95


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


def test_pairs_cancel_what_both_share() -> None:
    draws = seeded(3)
    hard = [5 * torch.randn(1, generator=draws) + torch.zeros(4) for _ in range(10)]
    better = [batch + 0.5 + 0.01 * torch.randn(4, generator=draws) for batch in hard]
    found = paired_interval(better, hard, generator=seeded())
    assert found.mean == pytest.approx(0.5, abs=0.02)
    assert found.high - found.low < 0.05


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


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="nested alike"):
        paired_interval(torch.ones(3), torch.ones(4))
    with pytest.raises(ValueError, match="nested alike"):
        paired_interval([torch.ones(3)], torch.ones(3))


def test_level_must_be_a_share() -> None:
    with pytest.raises(ValueError, match="`level` should be in"):
        bootstrap_interval(torch.ones(3), level=95)

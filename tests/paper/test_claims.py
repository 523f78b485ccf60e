"""Claims: planted effects are found, chance is not, and every verdict can come out."""

import json
import math

import pytest
import torch

from paper.claims import AWARE, CAPPED, CLAIMS, MATCHED, PAPER, as_markdown, find, write_claims
from paper.measures import (
    MINIMUM_GROUPS,
    NOT_REPRODUCED,
    NOT_TESTABLE,
    NOT_TESTED,
    REPRODUCED,
    UNDECIDED,
    AttackMeasure,
    at_equal_levels,
    attack_above_bound,
    judge,
)
from paper.reproduce import STUDIES
from paper.study import cell_of
from tests.paper.synthetic import synthetic_store, with_scores


def units(mean: float, groups: int = 8, scatter: float = 0.1, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    shifts = torch.randn(groups, generator=generator) * scatter
    return {(16 * g, 0): torch.full((4,), mean) + float(shifts[g]) for g in range(groups)}


@pytest.mark.parametrize(
    ("mean", "margin", "verdict"),
    [
        (0.5, None, REPRODUCED),
        (-0.5, None, NOT_REPRODUCED),
        (0.0, None, UNDECIDED),
        (0.0, 0.3, REPRODUCED),
        (0.9, 0.3, NOT_REPRODUCED),
        (-0.9, 0.3, NOT_REPRODUCED),
        (0.3, 0.3, UNDECIDED),
    ],
)
def test_each_verdict_comes_out(mean, margin, verdict):
    found = judge(units(mean), margin)
    assert found.verdict == verdict
    assert found.low < found.mean < found.high


def test_few_batches_decide_nothing():
    assert judge(units(5.0, groups=MINIMUM_GROUPS)).verdict == REPRODUCED
    few = judge(units(5.0, groups=MINIMUM_GROUPS - 1))
    assert few.verdict == UNDECIDED
    assert "at least 6" in few.reason
    assert judge({}).verdict == NOT_TESTED


def test_seeds_of_one_batch_are_no_further_batches():
    repeated = {(16 * (g % 3), g): values for g, values in enumerate(units(5.0, 12).values())}
    found = judge(repeated)
    assert (found.pairs, found.groups, found.verdict) == (12, 3, UNDECIDED)


@pytest.mark.slow
def test_chance_is_rarely_taken_for_an_effect():
    """5 % are, with as few groups as count; a plain percentile interval has 14 %."""
    few = MINIMUM_GROUPS
    verdicts = [judge(units(0.0, groups=few, seed=seed)).verdict for seed in range(200)]
    assert verdicts.count(UNDECIDED) >= 182


def test_the_effect_is_the_mean_over_the_scatter():
    found = judge({(g, 0): torch.tensor([float(x)]) for g, x in enumerate((1, 2, 3) * 3)})
    assert found.effect == pytest.approx(2 / torch.tensor([1.0, 2, 3] * 3).std().item())


def test_a_planted_effect_is_found_in_every_claim_of_superiority():
    findings = find(synthetic_store("quick", effect=0.4))
    wrong = [
        (f.claim.name, f.variant, f.judgement)
        for f in findings
        if f.claim.margin is None
        and f.variant != CAPPED  # these errors are above a blank image's
        and f.judgement.groups >= MINIMUM_GROUPS
        and f.judgement.verdict != REPRODUCED
    ]
    assert wrong == []


def test_a_planted_opposite_is_not_reproduced():
    findings = find(synthetic_store("quick", effect=-0.4))
    by_name = {(f.claim.name, f.variant): f.judgement.verdict for f in findings}
    for name in ("mnist-pruning-mse", "mnist-pruning-psnr", "mnist-noise-training"):
        assert by_name[name, PAPER] == NOT_REPRODUCED
    assert by_name["mnist-pruning-tradeoff", PAPER] == NOT_TESTED  # no loss that both reach
    findings = find(synthetic_store("quick", effect=-0.05, scatter=0.01), CLAIMS[4:5])
    assert findings[0].claim.name == "mnist-pruning-tradeoff"
    assert findings[0].judgement.verdict == NOT_REPRODUCED


def test_without_an_effect_most_claims_are_undecided_and_similar_things_are_similar():
    named = ("mnist-pruning-mse", "mnist-pruning-training", "cifar-noise-error")
    claims = [claim for claim in CLAIMS if claim.name in (*named, "mnist-noise-similar")]
    findings = find(synthetic_store("standard", effect=0.0), claims)
    by_name = {(f.claim.name, f.variant): f.judgement for f in findings}
    assert by_name["mnist-noise-similar", PAPER].verdict == REPRODUCED
    assert [by_name[name, PAPER].verdict for name in named].count(UNDECIDED) >= 2


def test_the_files_have_every_test_and_what_it_is_made_from(tmp_path):
    write_claims(synthetic_store("quick", effect=0.4), tmp_path)
    text = (tmp_path / "claims.md").read_text()
    assert "6 batches of 4, attacked with `paper(steps=80)`" in text
    plain = json.loads((tmp_path / "claims.json").read_text())
    assert len(plain) == sum(len(claim.variants) for claim in CLAIMS)
    assert {"verdict", "mean", "low", "high", "effect", "pairs", "groups"} <= plain[0].keys()


def test_claims_need_no_cell_at_all(tmp_path):
    write_claims({name: {} for name in STUDIES}, tmp_path)
    assert "0 reproduced, 0 not reproduced" in (tmp_path / "claims.md").read_text()
    assert "no pairs" in as_markdown(find({}))


def test_pairs_take_only_what_both_have():
    found = {
        ("optimal-pruning", 0.9): {(0, 0): torch.tensor([2.0]), (4, 0): torch.tensor([3.0])},
        ("gradient-pruning", 0.9): {(4, 0): torch.tensor([1.0]), (8, 0): torch.tensor([0.0])},
    }
    assert at_equal_levels(found, "pruning") == {0.9: {(4, 0): torch.tensor([2.0])}}


def test_a_bound_of_nothing_tests_nothing():
    """Every error is above 0, so noise with such a bound cannot speak for the theorem."""
    common = {"defense": "gradient-noise(scale=0.1)", "start": 0, "seed": 0}
    attack = cell_of("attack", {**common, "attack": "paper(steps=1)", "mechanism": "unknown"})
    bound = cell_of("candidate_bound", common)
    measure = attack_above_bound("bound-against-attacks", "candidate_bound", "error")
    for value, found in ((0.0, {}), (0.5, {(0, 0): -0.5})):
        cells = {
            attack: {"mse": [0.25], "blank_mse": [1.0]},
            bound: {"error": value},
        }
        units = measure({"bound-against-attacks": cells})
        assert {unit: float(v) for unit, v in units.items()} == found


def test_an_attack_that_finds_nothing_tests_no_bound():
    common = {"defense": "gradient-noise(scale=1.0)", "start": 0, "seed": 0}
    attack = cell_of("attack", {**common, "attack": "dlg(steps=1)", "mechanism": "unknown"})
    failed = {"mse": [1.01], "blank_mse": [1.0]}
    cells = {attack: failed, cell_of("candidate_bound", common): {"error": 0.2}}
    measure = attack_above_bound("bound-against-attacks", "candidate_bound", "error")
    assert measure({"bound-against-attacks": cells}) == {}


def test_a_small_bound_that_is_broken_counts_more_than_a_large_one_that_is_nearly_kept():
    """Under 0.01 all errors are a third of the bound, under 0.1 some are a little below it."""
    cells = {}
    for scale, bound, errors in ((0.01, 0.003, [0.001] * 6), (0.1, 0.3, [0.25, 0.31] * 3)):
        for start, error in enumerate(errors):
            common = {"defense": f"gradient-noise(scale={scale})", "start": start, "seed": 0}
            attack = cell_of(
                "attack", {**common, "attack": "paper(steps=1)", "mechanism": "unknown"}
            )
            cells[attack] = {"mse": [error], "blank_mse": [1.0]}
            cells[cell_of("bound", common)] = {"bound": bound}
    units = attack_above_bound("bound-against-attacks")({"bound-against-attacks": cells})
    assert [float(value) for value in units.values()] == pytest.approx([-2 / 3] * 6)
    assert judge(units).verdict == NOT_REPRODUCED


def test_an_attack_that_fails_without_a_defense_shows_nothing_about_one():
    store = synthetic_store("quick", effect=0.4)
    spoilt = {
        cell: {**result, "unmatched_mse": [2.0] * cell.settings["size"]}
        if cell.name == "attack"
        else result
        for cell, result in store["cifar-noise-error"].items()
    }
    [found] = [
        finding.judgement
        for finding in find({**store, "cifar-noise-error": spoilt})
        if finding.claim.name == "cifar-noise-failure" and finding.variant == PAPER
    ]
    assert found.verdict == NOT_TESTABLE
    assert "without a defense the attack is" in found.reason


def undefended_replaced(store, change):
    """The store with other errors of all attacks without a defense."""
    return with_scores(
        store, lambda c, r: change(c, r) if c.settings.get("defense") == "no-defense" else {}
    )


def verdicts(store):
    return {(f.claim.name, f.variant): f.judgement.verdict for f in find(store)}


@pytest.mark.slow
def test_no_claim_about_attacks_is_tested_with_one_that_fails_without_a_defense():
    store = synthetic_store("quick", effect=0.4)
    failing = undefended_replaced(
        store, lambda _, r: dict.fromkeys(("mse", "unmatched_mse"), r["blank_mse"])
    )
    before, after = verdicts(store), verdicts(failing)
    for claim in CLAIMS:
        for variant, measure in claim.variants.items():
            key = claim.name, variant
            if not isinstance(measure, AttackMeasure):
                assert after[key] == before[key]
            elif before[key] in (REPRODUCED, NOT_REPRODUCED):
                assert after[key] == NOT_TESTABLE
    assert list(after.values()).count(NOT_TESTABLE) > 20
    text = as_markdown(find(failing))
    assert "not testable here" in text.split("| claim |")[0]


def test_only_the_attacker_that_fails_is_no_test():
    store = synthetic_store("quick", effect=0.4)
    failing = undefended_replaced(
        store,
        lambda c, r: {"mse": r["blank_mse"]} if c.settings["mechanism"] == "known" else {},
    )
    found = verdicts(failing)
    assert found["mnist-pruning-mse", AWARE] == NOT_TESTABLE
    assert found["mnist-pruning-mse", MATCHED] == REPRODUCED


def test_a_bound_must_hold_for_each_noise():
    store = synthetic_store("quick")
    cells = store["bound-against-attacks"]
    worst = max(c.settings["defense"] for c in cells if c.name == "bound")
    broken = {
        cell: {**result, "bound": 9.0}
        if cell.name == "bound" and cell.settings["defense"] == worst
        else result
        for cell, result in cells.items()
    }
    [found] = [
        finding.judgement
        for finding in find({**store, "bound-against-attacks": broken})
        if finding.claim.name == "theorem-1" and finding.variant == PAPER
    ]
    assert found.mean < 0


MOVED = {
    "optimal-clamped-noise(scale=0.01, source='private')": 0.5,
    "optimal-clamped-noise(scale=0.1, source='private')": -0.5,
}


def test_one_level_that_differs_is_not_similar():
    store = synthetic_store("quick", scatter=0.01)
    moved = {
        cell: {**result, "mse": [x + shift for x in result["mse"]]}
        for cell, result in store["mnist-noise"].items()
        for shift in [MOVED.get(cell.settings["defense"], 0.0)]
    }
    [found] = [
        finding.judgement
        for finding in find({**store, "mnist-noise": moved})
        if finding.claim.name == "mnist-noise-similar" and finding.variant == MATCHED
    ]
    assert found.verdict == NOT_REPRODUCED


def test_a_number_that_is_not_finite_decides_nothing():
    found = judge({(g, 0): torch.tensor([float("nan") if g == 3 else 1.0]) for g in range(8)})
    assert found.verdict == UNDECIDED
    assert "not finite" in found.reason


def test_weights_are_compared_with_weights():
    def layers(weights, biases):
        levels = {f"l{i}.weight": [w] for i, w in enumerate(weights)}
        levels |= {f"l{i}.bias": [b] for i, b in enumerate(biases)}
        cells = [cell_of("training", {"seed": seed}) for seed in range(6)]
        return {"mnist-layer-noise": {cell: {"levels": levels} for cell in cells}}

    verdicts = {
        finding.claim.name: finding.judgement.mean
        for finding in find(layers((0.07, 0.07), (0.01, 0.03)))
        if finding.claim.name.startswith("mnist-layer-noise") and finding.variant == PAPER
    }
    assert verdicts["mnist-layer-noise-weight"] == pytest.approx(-1)
    assert verdicts["mnist-layer-noise-bias"] == pytest.approx(math.log2(3) - 1)

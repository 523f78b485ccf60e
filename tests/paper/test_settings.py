"""Claims in three settings: each has an entry in each, and cells decide what it is."""

import json

import pytest

from paper.claims import (
    AWARE,
    CLAIMS,
    PAPER,
    PRIVATE_PLANS,
    PUBLIC_PLANS,
    SAFE,
    SETTINGS,
    difference_text,
    find,
    plain,
    settings_table,
    with_views,
    write_claims,
)
from paper.grids import NO_PLAN, PRIVATE, PUBLIC, contender_of
from paper.measures import (
    MINIMUM_GROUPS,
    NOT_ASKED,
    NOT_REPRODUCED,
    NOT_TESTABLE,
    NOT_TESTED,
    REPRODUCED,
    Judgement,
)
from paper.numbers import name_and_level
from tests.paper.synthetic import synthetic_results, synthetic_store

BEYOND_BLANK = "cifar-noise-failure"


@pytest.fixture(scope="module")
def store():
    return synthetic_store("standard", effect=0.05, scatter=0.01)


@pytest.fixture(scope="module")
def all_found(store):
    return find(store)


@pytest.fixture(scope="module")
def found(all_found):
    return {(f.claim.name, f.setting): f.judgement for f in all_found if f.setting}


def judged(store, *names):
    """What is found of the claims of these names, by name and setting."""
    some = [claim for claim in CLAIMS if claim.name in names]
    return {(f.claim.name, f.setting): f.judgement for f in find(store, some) if f.setting}


def replaced(store, effect, has):
    """The store with cells of the frontier that an other effect was planted in."""
    cells = store["frontier"]
    others = synthetic_results([c for c in cells if has(c)], effect, 0.01)
    return {**store, "frontier": {**cells, **others}}


def is_public(cell):
    return contender_of(cell.settings)[1] == PUBLIC


def test_every_claim_has_all_three_settings():
    for claim in CLAIMS:
        assert {PAPER, AWARE, SAFE} <= claim.variants.keys(), claim.name
        assert not isinstance(claim.variants[PAPER], str)
    assert [*SETTINGS.values()] == ["paper", "aware", "safe"]


def test_what_no_setting_changes_has_no_verdict_and_a_reason(found):
    assert found["mnist-pruning-training", "aware"].verdict == NOT_ASKED
    assert "training" in found["mnist-pruning-training", "aware"].reason


def test_a_planted_effect_is_found_in_every_setting(found):
    for claim in CLAIMS:
        compares = claim.name.startswith("mnist") and "layer" not in claim.name
        if claim.margin is None and compares:  # the effect is too small for the others
            for setting in SETTINGS.values():
                verdict = found[claim.name, setting].verdict
                assert verdict in (REPRODUCED, NOT_TESTED, NOT_ASKED), (claim.name, setting)
    for name in ("mnist-noise-tradeoff", "cifar-noise-tradeoff"):
        assert found[name, "safe"].verdict == REPRODUCED
        assert found[name, "safe"].groups == 16
    assert found["mnist-noise-training", "safe"].groups >= MINIMUM_GROUPS
    assert found["mnist-noise-images-error", "aware"].groups >= MINIMUM_GROUPS


def test_the_safe_setting_looks_at_public_plans_alone(store, found):
    flipped = replaced(store, -0.5, is_public)
    names = ("mnist-pruning-mse", "mnist-pruning-training", "mnist-noise-training")
    now = judged(flipped, *names)
    for name in names:
        assert now[name, "safe"].verdict == NOT_REPRODUCED
    for name, setting in now:
        if setting != "safe":
            assert now[name, setting] == found[name, setting]


def test_the_safe_setting_of_photos_looks_at_their_own_frontier(store, found):
    """Claims about CIFAR-10 turn around where public plans on photos do."""
    cells = store["cifar-frontier"]
    others = synthetic_results([c for c in cells if is_public(c)], -2.0, 0.01)
    kinds = ("70-error", "70-utility", "80-error", "80-utility", "noise-utility", "noise-error")
    names = [c.name for c in CLAIMS if c.name.startswith("cifar") and c.name.endswith(kinds)]
    assert len(names) == len(kinds)
    now = judged({**store, "cifar-frontier": {**cells, **others}}, *names)
    assert {now[name, "safe"].verdict for name in names} == {NOT_REPRODUCED}
    for name, setting in now:
        if setting != "safe":
            assert now[name, setting] == found[name, setting]


def test_the_failure_behind_noise_is_of_noise_alone(store, found):
    """Ratios of pruning are above every scale, but no noise."""
    pruned = [c for c in store["cifar-frontier"] if "pruning" in c.settings["defense"]]
    others = synthetic_results(pruned, 5.0, 0.01)
    now = judged({**store, "cifar-frontier": {**store["cifar-frontier"], **others}}, BEYOND_BLANK)
    assert now[BEYOND_BLANK, "safe"] == found[BEYOND_BLANK, "safe"]
    assert now[BEYOND_BLANK, "safe"].pairs >= 16


def test_nothing_is_judged_with_public_plans_while_these_have_no_cells(store):
    cells = {c: r for c, r in store["cifar-frontier"].items() if not is_public(c)}
    names = [claim.name for claim in CLAIMS if claim.name.startswith("cifar")]
    now = judged({**store, "cifar-frontier": cells}, *names)
    assert {now[name, "safe"].verdict for name in names} == {NOT_TESTED}


def test_an_attack_that_was_not_run_without_a_defense_decides_nothing(store):
    bare = {
        name: {c: r for c, r in cells.items() if c.settings.get("defense") != "no-defense"}
        for name, cells in store.items()
    }
    now = judged(bare, "mnist-pruning-mse", "mnist-pruning-training")
    assert {now["mnist-pruning-mse", s].verdict for s in SETTINGS.values()} == {NOT_TESTED}
    assert "not run without a defense" in now["mnist-pruning-mse", "paper"].reason
    assert now["mnist-pruning-training", "paper"].verdict == REPRODUCED


def test_training_claims_need_a_training_that_learned(store):
    """Where neither form learns anything at large scales, nothing is said of these."""

    def stuck(cell, result):
        level = name_and_level(cell.settings["defense"])[1]
        if (
            cell.name != "training"
            or "clamped-noise" not in cell.settings["defense"]
            or level < 5e-3
        ):
            return result
        return {**result, "losses": [2.31 + 0.01 * x for x in result["losses"]]}

    cells = {cell: stuck(cell, result) for cell, result in store["cifar-frontier"].items()}
    now = judged({**store, "cifar-frontier": cells}, "cifar-noise-utility", "cifar-noise-growth")
    assert now["cifar-noise-utility", "safe"].verdict == NOT_TESTED
    assert now["cifar-noise-growth", "safe"].groups == 6


@pytest.mark.slow
def test_private_plans_of_the_frontier_count_where_the_attacker_knows(store, found):
    flipped = replaced(store, -0.9, lambda c: contender_of(c.settings)[1] == PRIVATE)
    now = judged(flipped, "mnist-noise-images-error", "mnist-noise-tradeoff", "mnist-noise-similar")
    changed = {key for key in now if now[key] != found[key]}
    assert changed == {("mnist-noise-images-error", "aware")}


def test_at_equal_final_loss_what_trains_worse_counts_for_less(store):
    """Public plans that cost loss: at equal scale they are ahead, at equal loss they are not."""

    def worse(cell, result):
        if cell.name != "training" or not is_public(cell):
            return result
        return {**result, "losses": [x + 0.2 for x in result["losses"]]}

    cells = {cell: worse(cell, result) for cell, result in store["frontier"].items()}
    now = judged({**store, "frontier": cells}, "mnist-noise-tradeoff")[
        "mnist-noise-tradeoff", "safe"
    ]
    assert now.verdict in (NOT_REPRODUCED, NOT_TESTED)
    assert now.mean is None or now.mean < 0


def test_an_attack_that_fails_without_a_defense_decides_nothing_in_the_safe_setting(store):
    def failing(cell, result):
        undefended = cell.name == "attack" and cell.settings["defense"] == "no-defense"
        return {**result, "mse": result["blank_mse"]} if undefended else result

    cells = {cell: failing(cell, result) for cell, result in store["frontier"].items()}
    now = judged({**store, "frontier": cells}, "mnist-pruning-mse", "mnist-noise-training")
    assert now["mnist-pruning-mse", "safe"].verdict == NOT_TESTABLE
    assert now["mnist-noise-training", "safe"].verdict == REPRODUCED


def test_views_are_parts_of_their_study(store):
    viewed = with_views(store)
    for view, plan in ((PUBLIC_PLANS, PUBLIC), (PRIVATE_PLANS, PRIVATE)):
        assert {contender_of(c.settings)[1] for c in viewed[view]} == {NO_PLAN, plan}
        assert viewed[view].items() <= store["frontier"].items()
    assert with_views({})[PUBLIC_PLANS] == {}


def test_the_table_has_a_row_for_each_claim_and_the_reasons_below(all_found):
    table = settings_table(all_found)
    rows, notes = table.split("\n\n")
    assert len(rows.splitlines()) == 2 + len(CLAIMS)
    assert "reproduced +0.05 [0.0" in rows
    assert "- (1)" in rows
    assert notes.splitlines()[0].startswith("1. the claim is about training")


def test_differences_are_short():
    whole = Judgement(REPRODUCED, 0.1034, -0.0412, 12.34, None, 8, 8, "")
    assert difference_text(whole) == "+0.1 [-0.041, 12]"
    assert difference_text(whole._replace(low=None, high=None)) == "+0.1"
    assert difference_text(whole._replace(mean=None)) == ""


@pytest.mark.slow
def test_findings_are_what_the_file_holds_and_the_same_each_time(tmp_path):
    store = synthetic_store("quick", effect=0.1)
    write_claims(store, tmp_path)
    kept = json.loads((tmp_path / "claims.json").read_text())
    again = {name: dict(reversed(cells.items())) for name, cells in store.items()}
    assert [plain(one) for one in find(store)] == kept
    assert [plain(one) for one in find(again)] == kept
    assert {row["setting"] for row in kept} == {"paper", "aware", "safe", None}
    text = (tmp_path / "claims.md").read_text()
    assert text.index(settings_table(find(store))) < text.index("## All tests")

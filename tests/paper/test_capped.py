"""Errors above a blank image's protect no better: the variant that counts them up to it."""

import pytest
import torch

from paper.claims import CAPPED, CLAIMS, PAPER, find
from paper.measures import CAPPED_ERROR, NOT_TESTABLE, NOT_TESTED, REPRODUCED, UNDECIDED, errors_of
from tests.paper.synthetic import synthetic_store, with_scores

CAPPED_CLAIMS = [claim for claim in CLAIMS if CAPPED in claim.variants]


def with_blank(store, error):
    return with_scores(store, lambda cell, _: {"blank_mse": [error] * cell.settings["size"]})


def judged(store):
    """Of each claim that has pairs: the judgement as in the paper, and the capped one."""
    found = {(f.claim.name, f.variant): f.judgement for f in find(store, CAPPED_CLAIMS)}
    both = [(found[c.name, PAPER], found[c.name, CAPPED]) for c in CAPPED_CLAIMS]
    tested = [pair for pair in both if pair[0].verdict != NOT_TESTED]
    assert len(tested) >= 8
    return tested


@pytest.fixture(scope="module")
def store():
    return synthetic_store("quick", effect=0.1, scatter=0.005)


def test_claims_that_one_form_leaves_more_error_have_the_variant():
    """Two forms that both find nothing would be similar, so claims of similarity do not."""
    assert len(CAPPED_CLAIMS) == 9
    assert all(claim.margin is None for claim in CAPPED_CLAIMS)


def test_each_error_counts_up_to_that_of_its_own_blank_image(store):
    def uneven(cell, result):
        return {"blank_mse": [0.3 + 0.4 * k for k in range(cell.settings["size"])]}

    cells = with_scores(store, uneven)["cifar-pruning-tradeoff"]
    plain, capped = (errors_of(cells, name) for name in ("unmatched_mse", CAPPED_ERROR))
    blank = torch.tensor([0.3, 0.7], dtype=torch.float64)
    for defense, own in plain.items():
        for unit, error in own.items():
            expected = torch.where(error < blank, error, blank)
            assert torch.equal(capped[defense][unit], expected)
    everything = torch.cat([e for own in capped.values() for e in own.values()])
    assert (everything < 0.7).any()
    assert (everything == 0.3).any()


def test_errors_below_a_blank_image_count_in_full(store):
    for as_printed, capped in judged(with_blank(store, 9.0)):
        assert as_printed.verdict == REPRODUCED
        assert capped == as_printed


def test_a_difference_above_a_blank_image_is_none(store):
    """The attack works without a defense, and behind all of them finds less than a blank image."""

    def scores(cell, result):
        if cell.settings["defense"] == "no-defense":
            return {"unmatched_mse": [0.1] * cell.settings["size"]}
        return {"blank_mse": [0.2] * cell.settings["size"]}

    for as_printed, capped in judged(with_scores(store, scores)):
        assert as_printed.verdict == REPRODUCED
        assert capped.verdict == UNDECIDED
        assert capped.mean == 0
        assert capped.reason == "no pair differs"


def test_whether_an_attack_works_is_told_by_its_full_errors(store):
    """A capped error is never above a blank image's: it would let no attack fail by much."""
    failing = with_scores(
        store,
        lambda cell, result: (
            {"unmatched_mse": [3.0] * cell.settings["size"]}
            if cell.settings["defense"] == "no-defense"
            else {}
        ),
    )
    for _, capped in judged(failing):
        assert capped.verdict == NOT_TESTABLE
        assert "-6.0 [-6.0, -6.0] dB" in capped.reason

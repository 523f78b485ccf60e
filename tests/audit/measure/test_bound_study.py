"""Bounds without attacks, from Python."""

import pytest
from torch.nn.functional import cross_entropy

from gradveil.audit import BoundStudy
from tests.audit.small import make_subject, table, table_model


def study(spec: str) -> BoundStudy:
    inputs, targets = table()
    private, public = (inputs[:2], targets[:2]), (inputs[2:], targets[2:])
    options = {"public": public, "normalization": None, "local": None, "name": "table"}
    return BoundStudy(
        make_subject(table_model(), cross_entropy, private, batches=1, **options), spec, 0
    )


@pytest.mark.parametrize(
    ("spec", "count"), [("no-defense", 0), ("optimal-noise", 7), ("gradient-pruning", 7)]
)
def test_what_has_an_amount_is_swept(spec: str, count: int):
    assert len(study(spec).sweep()) == count


def test_a_target_error_is_swept_around_the_scale_that_meets_it():
    scales = [one.scale for one in study("optimal-noise(target_error=0.1)").sweep()]
    assert scales == pytest.approx([scales[0] * 2**k for k in range(7)])
    assert all(one.target_error is None for one in study("optimal-noise(target_error=0.1)").sweep())

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


def test_nothing_to_sweep_names_the_parameter_not_an_option():
    undefended = study("no-defense")
    assert not undefended.has_amount
    with pytest.raises(
        ValueError, match="Parameter `spec` should be a defense with a scale"
    ) as told:
        undefended.sweep()
    assert "--" not in str(told.value)
    assert "NoDefense" in str(told.value)


@pytest.mark.parametrize("spec", ["optimal-noise", "gradient-pruning"])
def test_what_has_an_amount_is_swept(spec: str):
    assert study(spec).has_amount
    assert len(study(spec).sweep()) == 7

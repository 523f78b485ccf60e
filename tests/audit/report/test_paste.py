import pytest

import gradveil
from gradveil.audit.report._words import python_line
from gradveil.catalog import build_defense

SPECS = [
    "gradient-noise(scale=0.0123)",
    "optimal-noise(granularity='layer', scale=0.05)",
    "optimal-pruning(ratio=0.9, noise=gradient-noise(scale=0.01))",
    "private-noise(noise_multiplier=6.01, clip=1.85, batch_size=4)",
    "sign-compression",
]


@pytest.mark.parametrize("spec", SPECS)
def test_the_pasted_line_makes_the_defense(spec):
    names: dict[str, object] = {"gradveil": gradveil}
    exec(python_line(spec, "model"), names)
    assert names["defense"] == build_defense(spec)


def test_a_plan_from_public_examples_says_where_they_go():
    line = python_line("optimal-noise(scale=0.1)", "public")
    source = "source=gradveil.Public((public_inputs, public_targets))"
    assert line == f"defense = gradveil.OptimalNoise(scale=0.1, {source})"
    own = python_line("my.mod:Foo", "public")
    assert own == f"defense = my.mod.Foo({source})"
    compile(own, "pasted", "exec")

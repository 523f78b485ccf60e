"""`gradveil.audit`, and specifications of defenses and attacks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradveil.catalog import build_attack, build_defense
from tests.audit.small import audit
from tests.wrong_arguments.cases import (
    HUGE,
    INPUTS,
    NAN,
    TARGETS,
    Raising,
    Returning,
    Wrong,
    assert_refused,
    cross_entropy,
    linear,
    model,
    table,
    with_weight,
)


def audited(
    network: Any = None,
    batch: Any = (INPUTS, TARGETS),
    loss_fn: Any = cross_entropy,
    **changes: Any,
) -> Callable[[], Any]:
    chosen = model() if network is None else network
    options = {"defenses": ["optimal-noise"], "attacks": [], **changes}
    return lambda: audit(chosen, loss_fn, batch, **options)


def labels(*numbers: int) -> tuple[torch.Tensor, torch.Tensor]:
    return INPUTS, torch.tensor(numbers)


@table(
    (audited("mlp"), "model", "str"),
    (audited(nn.Linear), "model", "type"),
    (audited(model().half()), "model", "torch.float16"),
    (audited(linear(7, 3)), "model", "7x3"),
    (audited(linear(5, 2)), "targets", "from 0 to 2"),
    (audited(with_weight(NAN)), "the model's weights", "1 of 30"),
    (audited(Raising(OSError("gone"))), "model", "OSError: gone"),
    (audited(Returning(None)), "model", "NoneType"),
    (audited(Returning(torch.zeros(4))), "model", "(4,)"),
    (audited(nn.DataParallel(model())), "model", "DataParallel"),
    (audited(loss_fn=None), "loss_fn", "None"),
    (audited(loss_fn=nn.CrossEntropyLoss(reduction="none")), "loss_fn", "(4,)"),
    (audited(batch=INPUTS), "data", "Tensor"),
    (audited(batch=None), "data", "NoneType"),
    (audited(batch=(INPUTS,)), "data", "tuple of 1"),
    (audited(batch=(INPUTS.numpy(), TARGETS)), "inputs", "ndarray"),
    (audited(batch=(INPUTS.half(), TARGETS)), "inputs", "torch.float16"),
    (audited(batch=(INPUTS, TARGETS.tolist())), "targets", "list"),
    (audited(batch=(INPUTS, TARGETS.double())), "targets", "torch.float64"),
    (audited(batch=labels(0, 1, 2, -100)), "targets", "from -100 to 2. Leave out examples"),
    (audited(batch=labels(0, 1, 2, 2**40)), "targets", "1099511627776"),
    (audited(public=INPUTS), "public", "Tensor"),
    (audited(public=labels(0, 1, 2, -1)), "targets", "-1"),
    (audited(normalization="rgb"), "normalization", "'rgb'"),
    (audited(normalization=((0.5,), (0.0,))), "normalization", "0.0"),
    (audited(defenses="optimal-noise"), "defenses", "'optimal-noise'"),
    (audited(defenses=[3]), "defenses", "int"),
    (audited(defenses=["optimal-nose"]), "optimal-nose", "Did you mean"),
    (audited(defenses=["optimal-noise(scale=-1)"]), "scale", "-1"),
    (audited(defenses=["optimal-noise(target_error=0)"]), "target_error", "0"),
    (audited(attacks="strong"), "attacks", "'strong'"),
    (audited(attacks=[3]), "attacks", "3"),
    (audited(attacks=["strongg"]), "strongg", "Did you mean"),
    (audited(attacks=["analytic"], steps=3), "steps", "steps = 3"),
    (audited(batch_size=0), "batch_size", "0"),
    (audited(batch_size=3), "batch_size", "4 examples for batches of 3"),
    (audited(aggregation="secure"), "aggregation", "sum alone"),
    (audited(seeds=0), "seeds", "0"),
    (audited(seeds=1.5), "seeds", "1.5"),
    (audited(threat="known"), "threat", "'known'"),
    (audited(local=(0.1, 2)), "local", "(0.1, 2)"),
    (audited(steps=0), "steps", "0"),
    (audited(steps=-5), "steps", "-5"),
    (audited(training_seeds=-1), "training_seeds", "-1"),
    (audited(time_budget=-1.0), "time_budget", "-1.0"),
    (audited(time_budget=NAN), "time_budget", "nan"),
    (audited(seed=-1), "seed", "-1"),
    (audited(seed=2**70), "seed", str(2**70)),
    (audited(seed=HUGE), "seed", "1329 bits"),
    (audited(strengths=0), "strengths", "0"),
    (audited(releases=3), "releases", "3"),
    (audited(jobs=0), "jobs", "0"),
)
def test_audit(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


@table(
    (lambda: build_defense("optimal-noise("), "", "optimal-noise("),
    (lambda: build_defense("optimal noise"), "", "optimal noise"),
    (lambda: build_defense("noise"), "noise", "A defense should be one of"),
    (lambda: build_defense("optimal-noise(scale=x)"), "x", "part"),
    (lambda: build_defense("optimal-noise(scale=1+1)"), "", "1+1"),
    (lambda: build_defense("optimal-noise(wide=1)"), "optimal-noise", "wide"),
    (lambda: build_defense("optimal-noise(scale=1e300)"), "scale", "1e+300"),
    (lambda: build_defense("optimal-noise(0.1, source=3)"), "source", "3"),
    (lambda: build_defense("optimal-pruning(ratio=7)"), "ratio", "7"),
    (lambda: build_attack("strong(steps=0)"), "steps", "0"),
    (lambda: build_attack("dlg(steps='a')"), "steps", "'a'"),
    (lambda: build_attack(""), "", "attack"),
)
def test_specifications(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


def test_the_table_is_large() -> None:
    """More than 300 wrong calls of the library, beside those of the command line."""
    from tests.wrong_arguments import test_attacks, test_core, test_data, test_defenses
    from tests.wrong_arguments import test_federated as federated

    modules = (test_attacks, test_core, test_data, test_defenses, federated)
    marks = [
        mark
        for module in modules
        for value in vars(module).values()
        for mark in getattr(value, "pytestmark", [])
        if isinstance(mark, pytest.Mark) and mark.name == "parametrize"
    ]
    assert sum(len(mark.args[1]) for mark in marks) > 300

"""Defenses, mechanisms and the theory."""

from pathlib import Path

import pytest
import torch

from gradveil import (
    ClampedNoise,
    GaussianPrior,
    GradientNoise,
    GradientPruning,
    NoDefense,
    NonFiniteError,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    Rounding,
    reconstruction_bound,
    utility,
)
from gradveil.mechanisms import Mechanism, RoundingMechanism
from gradveil.shapes import FromServer, ModelSource, Public
from gradveil.theory import (
    fisher_trace,
    gain_over_isotropic,
    plan_information,
    plan_information_trace,
    share_of_optimum,
)
from tests.wrong_arguments.cases import (
    HUGE,
    INF,
    INPUTS,
    NAN,
    Wrong,
    assert_refused,
    message,
    moments,
    table,
)

ONE = {"a": torch.ones(2)}
NOISE = Mechanism(1.0)


@table(
    (lambda: GradientNoise(-0.1), "scale", "-0.1"),
    (lambda: GradientNoise(NAN), "scale", "nan"),
    (lambda: GradientNoise(INF), "scale", "inf"),
    (lambda: GradientNoise(1e300), "scale", "1e+300"),
    (lambda: GradientNoise(1e19), "scale", "1e+19"),
    (lambda: GradientNoise(HUGE), "scale", "1329 bits"),
    (lambda: GradientNoise("0.1"), "scale", "'0.1'"),
    (lambda: GradientNoise(True), "scale", "True"),
    (lambda: GradientNoise([0.1]), "scale", "[0.1]"),
    (lambda: GradientNoise(1j), "scale", "1j"),
    (lambda: GradientNoise(torch.tensor(0.1)), "scale", "Tensor"),
    (lambda: OptimalNoise(), "scale", "none"),
    (lambda: OptimalNoise(0.1, utility_budget=1.0), "scale", "['scale', 'utility_budget']"),
    (lambda: OptimalNoise(utility_budget=-1.0), "utility_budget", "-1.0"),
    (lambda: OptimalNoise(utility_budget=NAN), "utility_budget", "nan"),
    (lambda: OptimalNoise(utility_budget=1e300), "utility_budget", "1e+300"),
    (lambda: OptimalNoise(target_error=0.0), "target_error", "0.0"),
    (lambda: OptimalNoise(target_error=-1.0), "target_error", "-1.0"),
    (lambda: OptimalNoise(target_error=NAN), "target_error", "nan"),
    (lambda: OptimalNoise(target_error=0.1, prior="flat"), "prior", "'flat'"),
    (lambda: OptimalNoise(0.1, granularity="row"), "granularity", "'row'"),
    (lambda: OptimalNoise(0.1, granularity=["layer"]), "granularity", "['layer']"),
    (lambda: OptimalNoise(0.1, cap=0.0), "cap", "0.0"),
    (lambda: OptimalNoise(0.1, floor=-1.0), "floor", "-1.0"),
    (lambda: OptimalNoise(0.1, floor=1e200), "floor", "1e+200"),
    (lambda: OptimalNoise(0.1, estimator=5), "estimator", "5"),
    (lambda: OptimalNoise(0.1, estimator="best"), "estimator", "'best'"),
    (lambda: ClampedNoise(0.1, clip=0.0), "clip", "0.0"),
    (lambda: ClampedNoise(0.1, clip=1e200), "clip", "1e+200"),
    (lambda: OptimalClampedNoise(0.1, clip=NAN), "clip", "nan"),
    (lambda: OptimalClampedNoise(0.1, clip=None), "clip", "None"),
    (lambda: GradientPruning(1.5), "ratio", "1.5"),
    (lambda: GradientPruning(-0.5), "ratio", "-0.5"),
    (lambda: GradientPruning("90%"), "ratio", "'90%'"),
    (lambda: OptimalPruning(0.9, noise=0.1), "noise", "float"),
    (lambda: OptimalPruning(0.9, noise=Rounding(0.1)), "noise", "Rounding"),
    (lambda: OptimalPruning(target_error=0.1), "noise", "None"),
    (lambda: OptimalPruning(0.9, estimator=GradientNoise), "estimator", "GradientNoise"),
    (lambda: OptimalPruning(0.9, prior=3), "prior", "3"),
    (lambda: Rounding(0.0), "step", "0.0"),
    (lambda: Rounding(None), "step", "None"),
    (lambda: OptimalRounding(-1.0), "step", "-1.0"),
    (lambda: OptimalNoise(0.1, source=3), "source", "3"),
    (lambda: OptimalNoise(0.1, source="somewhere"), "source", "'somewhere'"),
    (lambda: ModelSource(0), "refresh_every", "0"),
    (lambda: Public("examples"), "examples", "str"),
    (lambda: FromServer(floor=2.0), "floor", "2.0"),
    (lambda: OptimalNoise(0.1).load_state_dict([1]), "state", "[1]"),
    (lambda: OptimalNoise(0.1)("message", INPUTS), "message", "'message'"),
    (lambda: NoDefense()(None, INPUTS), "message", "None"),
    (lambda: NoDefense()(lambda x: [x], INPUTS), "message(inputs)", "list"),
    (lambda: NoDefense()(message(), INPUTS, 0), "generator", "0"),
    (lambda: OptimalNoise(0.1).plan(None), "moments", "None"),
    (lambda: OptimalNoise(0.1).plan(ONE), "moments", "dict"),
    (lambda: GradientPruning(0.5).plan(ONE), "moments", "dict"),
    (lambda: Rounding(0.5).plan([]), "moments", "[]"),
)
def test_defenses(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


@table(
    (lambda: Mechanism(None), "std", "None"),
    (lambda: Mechanism("1"), "std", "'1'"),
    (lambda: Mechanism([1.0]), "std", "[1.0]"),
    (lambda: Mechanism(-1.0), "std", "-1"),
    (lambda: Mechanism(NAN), "std", "nan"),
    (lambda: Mechanism(HUGE), "std", "1329 bits"),
    (lambda: Mechanism({"a": 1.0}), "std", "float for `a`"),
    (lambda: Mechanism({"a": "1"}), "std", "str for `a`"),
    (lambda: Mechanism({"a": torch.ones(2) * 1j}), "std", "torch.complex64"),
    (lambda: Mechanism({"a": torch.ones(2, device="meta")}), "std", "meta"),
    (lambda: Mechanism({"a": torch.tensor([1.0, NAN])}), "std", "nan"),
    (lambda: Mechanism(1.0, keep=2.0), "keep", "2"),
    (lambda: Mechanism(1.0, keep={"a": torch.tensor([-1.0])}), "keep", "-1"),
    (lambda: Mechanism(1.0, clip=-2.0), "clip", "-2"),
    (lambda: Mechanism({"b": torch.ones(2)}).apply(ONE), "std", "['a']"),
    (lambda: Mechanism({"a": torch.ones(3)}).apply(ONE), "std", "(3,)"),
    (lambda: NOISE.apply(None), "values", "NoneType"),
    (lambda: NOISE.apply([torch.ones(2)]), "values", "list"),
    (lambda: NOISE.apply({}), "values", "dict"),
    (lambda: NOISE.apply({"a": [1.0]}), "values", "list for `a`"),
    (lambda: NOISE.apply({"a": torch.ones(2).numpy()}), "values", "ndarray for `a`"),
    (lambda: NOISE.apply({"a": torch.ones(2).long()}), "values", "torch.int64"),
    (lambda: NOISE.apply({"a": torch.ones(2).half()}), "values", "torch.float16"),
    (lambda: NOISE.apply({"a": torch.tensor([NAN])}), "values", "1 of 1"),
    (lambda: NOISE.apply(ONE, generator=3), "generator", "3"),
    (lambda: NOISE.mean(None), "values", "NoneType"),
    (lambda: NOISE.variance({"a": 1.0}), "values", "float"),
    (lambda: NOISE.information({"a": "x"}), "values", "str"),
    (lambda: RoundingMechanism(-1.0), "step", "-1"),
    (lambda: RoundingMechanism({"a": 3}), "step", "int for `a`"),
    (lambda: RoundingMechanism(1.0).apply([1.0]), "values", "list"),
    (lambda: RoundingMechanism(1.0).variance(None), "values", "NoneType"),
)
def test_mechanisms(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


@pytest.mark.parametrize("std", [1e300, {"a": torch.full((2,), 1e300, dtype=torch.float64)}])
def test_noise_beyond_the_numbers_of_a_message_is_never_sent(std: object) -> None:
    with pytest.raises(NonFiniteError, match=r"`mechanism.apply\(values\)` should be finite"):
        Mechanism(std).apply(ONE)


def bound(**changes: object) -> object:
    options = {"message": message(), "inputs": INPUTS, "mechanism": NOISE, **changes}
    return lambda: reconstruction_bound(**options)


EYE = torch.eye(2)


@table(
    (bound(message=None), "message", "None"),
    (bound(inputs=[1.0]), "inputs", "list"),
    (bound(inputs=INPUTS.half()), "inputs", "torch.float16"),
    (bound(mechanism=None), "mechanism", "None"),
    (bound(mechanism=OptimalNoise(0.1)), "mechanism", "OptimalNoise"),
    (bound(mechanism=Mechanism), "mechanism", "Mechanism"),
    (bound(prior="flat"), "prior", "'flat'"),
    (bound(prior=GaussianPrior(torch.zeros(2), EYE)), "prior", "prior of 2 entries"),
    (bound(method="fast"), "method", "'fast'"),
    (bound(solver=3), "solver", "3"),
    (bound(probes=0), "probes", "0"),
    (bound(planned_by="optimal-noise"), "planned_by", "'optimal-noise'"),
    (bound(generator="x"), "generator", "'x'"),
    (lambda: utility(None, NOISE), "values", "NoneType"),
    (lambda: utility({"a": 1.0}, NOISE), "values", "float"),
    (lambda: utility(ONE, None), "mechanism", "None"),
    (lambda: utility(ONE, 1.0), "mechanism", "1.0"),
    (lambda: fisher_trace(ONE, NOISE), "moments", "dict"),
    (lambda: fisher_trace(moments(), "noise"), "mechanism", "'noise'"),
    (lambda: gain_over_isotropic(None, NOISE), "moments", "None"),
    (lambda: gain_over_isotropic(moments(), RoundingMechanism(1.0)), "mechanism", "Rounding"),
    (lambda: share_of_optimum(moments(), 0.1), "mechanism", "0.1"),
    (lambda: plan_information(None, INPUTS, OptimalNoise(0.1)), "message", "None"),
    (lambda: plan_information(message(), "x", OptimalNoise(0.1)), "inputs", "str"),
    (lambda: plan_information(message(), INPUTS, NOISE), "defense", "Mechanism"),
    (
        lambda: plan_information_trace(message(), INPUTS, OptimalNoise(0.1), probes=0),
        "probes",
        "0",
    ),
    (lambda: GaussianPrior([0.0], [[1.0]]), "mean", "list"),
    (lambda: GaussianPrior(torch.zeros(2), [[1.0]]), "covariance", "list"),
    (lambda: GaussianPrior(torch.zeros(2), torch.eye(3)), "covariance", "(3, 3)"),
    (lambda: GaussianPrior(torch.zeros(2), -EYE), "covariance", "not"),
    (lambda: GaussianPrior(torch.full((2,), NAN), EYE), "mean", "2 of 2"),
    (lambda: GaussianPrior.fit(None), "samples", "NoneType"),
    (lambda: GaussianPrior.fit(torch.zeros(1, 3)), "samples", "(1, 3)"),
    (lambda: GaussianPrior.fit(INPUTS, ridge=-1.0), "ridge", "-1.0"),
    (lambda: GaussianPrior(torch.zeros(2), EYE).sample(0, torch.Generator()), "count", "0"),
    (lambda: GaussianPrior(torch.zeros(2), EYE).sample(3, 7), "generator", "7"),
)
def test_theory(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)

"""Cell functions: the same bytes twice, what they promise to return, and effects that are known."""

import json
from dataclasses import replace

import pytest
import torch

from gradveil._random import named_stream
from gradveil._runner import Cell, _execute
from gradveil.mechanisms import Mechanism
from gradveil.models import build_model
from gradveil.theory import fisher_trace
from paper.cells import dataset, noise_of
from paper.reproduce import STUDIES
from paper.study import FUNCTIONS, cell_of
from paper.trainings import plan

MNIST = {"data": "mnist", "model": "simple-conv-net"}
ATTACK = {
    **MNIST,
    "start": 0,
    "size": 2,
    "seed": 0,
    "attack": "paper(steps=8)",
    "mechanism": "unknown",
    "defense": "no-defense",
}
TRAINING = {
    **MNIST,
    "start": 0,
    "examples": 16,
    "clients": 4,
    "batch_size": 4,
    "rounds": 2,
    "optimizer": "adam",
    "lr": 1e-3,
    "seed": 0,
}
PUBLIC = {
    **MNIST,
    "size": 4,
    "probes": 2,
    "public": 100,
    "counts": [2],
    "population": 3,
    "strange": 0,
    "seed": 0,
}


PREDICTION = {
    **MNIST,
    "batch_size": 4,
    "examples": 64,
    "steps": [1, 3],
    "refresh": 2,
    "public": {"start": 3200, "size": 4, "batches": 4},
    "held_out_start": 4000,
    "held_out": 32,
    "optimizer": "adam",
    "lr": 1e-3,
    "scale": 0.05,
    "seed": 0,
}


def executed(cell: Cell) -> object:
    """What a runner would write of it, the time apart."""
    reply = _execute(cell, None)
    assert isinstance(reply, str), reply
    return json.loads(reply)["result"]


def run(kind: str, **settings):
    return FUNCTIONS[kind](cell_of(kind, settings).settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("attack", {**ATTACK, "defense": "optimal-clamped-noise(scale=0.05)"}),
        ("training", {**TRAINING, "defense": "optimal-clamped-noise(scale=0.1)"}),
        ("short_training", {**TRAINING, "defense": "optimal-pruning(ratio=0.8)"}),
        (
            "training",
            {
                **TRAINING,
                "defense": "optimal-clamped-noise(scale=0.1)",
                "public": {"start": 100, "examples": 8, "refresh": 2},
            },
        ),
        ("training_prediction", {**PREDICTION, "shape": "private"}),
        (
            "estimator_share",
            {**MNIST, "start": 0, "size": 4, "estimator": "auto", "reference_probes": 2, "seed": 1},
        ),
        (
            "identification",
            {
                **MNIST,
                "start": 0,
                "size": 2,
                "examples": 100,
                "candidates": 3,
                "one_class": True,
                "trials": 2,
                "defense": "optimal-noise(scale=1.0, source='private')",
                "public": None,
                "seed": 0,
            },
        ),
        (
            "plan_quality",
            {
                **MNIST,
                "start": 0,
                "size": 4,
                "defense": "optimal-pruning(ratio=0.9)",
                "public": {"start": 100, "size": 4, "batches": 2},
                "probes": 4,
                "seed": 0,
            },
        ),
        ("public_plans", {**PUBLIC, "start": 0, "trained": 0}),
    ],
)
def test_a_cell_gives_the_same_bytes_twice(kind, settings):
    first, second = (executed(cell_of(kind, settings)) for _ in range(2))
    assert first == second


@pytest.mark.usefixtures("global_rng_watch")
def test_an_attack_keeps_scores_of_each_image_and_the_images():
    found = run("attack", **ATTACK)
    for name in ("mse", "psnr", "ssim", "unmatched_mse", "unmatched_psnr", "blank_mse"):
        assert len(found[name]) == 2, name
    assert sum(found["mse"]) <= sum(found["unmatched_mse"]) + 1e-9
    assert found["images"].shape == found["originals"].shape == (2, 1, 28, 28)
    assert 0 <= float(found["images"].min()) <= float(found["images"].max()) <= 1
    assert found["status"] == "finished"


def test_defenses_share_the_attackers_start():
    pair = [
        run("attack", **{**ATTACK, "attack": "paper(steps=1, lr=0.0001)", "defense": defense})
        for defense in ("no-defense", "gradient-noise(scale=1.0)")
    ]
    assert torch.allclose(pair[0]["images"], pair[1]["images"], atol=1e-3)


def test_batches_have_noise_and_starts_of_their_own():
    still = {**ATTACK, "attack": "paper(steps=1, lr=0.0001)"}
    pair = [run("attack", **{**still, "start": start}) for start in (0, 2)]
    assert float((pair[0]["images"] - pair[1]["images"]).abs().mean()) > 0.1
    streams = [named_stream("studies", 0, "defense", start) for start in (0, 2)]
    drawn = [torch.randn(9, generator=stream) for stream in streams]
    assert not torch.equal(*drawn)


def test_an_attacker_who_knows_a_public_plan_can_be_run():
    public = {"start": 100, "size": 2, "batches": 2}
    attack = "adaptive(unaware=strong(steps=4, restarts=1, finish=None), finish=None)"
    settings = {**ATTACK, "defense": "optimal-clamped-noise(scale=0.1)", "attack": attack}
    found = run("attack", **{**settings, "mechanism": "known", "public": public})
    assert len(found["mse"]) == 2


def test_fedavg_updates_are_attacked():
    found = run("attack", **ATTACK, local={"lr": 0.05, "steps": 2, "batch_size": 1})
    assert len(found["mse"]) == 2


def test_training_records_losses_and_the_noise_of_every_layer():
    found = run("training", **TRAINING, defense="clamped-noise(scale=0.1)")
    assert len(found["losses"]) == 2
    assert set(found["levels"]) == {
        f"{layer}.{kind}"
        for layer in ("conv_layers.0", "conv_layers.3", "fc_layers.1", "fc_layers.3")
        for kind in ("weight", "bias")
    }
    for levels in found["levels"].values():
        assert levels == pytest.approx([0.1, 0.1])
    assert run("training", **TRAINING, defense="no-defense")["levels"] == {}


@pytest.mark.slow
def test_recording_does_not_change_the_training():
    from paper.trainings import federation

    settings = {**TRAINING, "defense": "optimal-clamped-noise(scale=0.1)"}
    plain = federation(settings).run(2)
    assert run("training", **settings)["losses"] == [row.loss for row in plain.rounds]


def test_a_short_training_without_a_defense_lowers_the_loss():
    found = run("short_training", **{**TRAINING, "rounds": 5}, defense="no-defense")
    assert found["after"] < found["before"]


def test_layer_sizes_are_those_of_the_papers_table():
    sizes = dict(run("layer_sizes", **MNIST)["sizes"])
    assert sizes["conv_layers.3.weight"] == 18_432
    assert sizes["fc_layers.1.weight"] == 100_352
    assert sum(sizes.values()) == 119_530


@pytest.mark.slow
def test_shares_order_plans_as_theory_does():
    common = {**MNIST, "start": 0, "size": 4, "probes": 16, "seed": 0, "public": None}
    for classical, optimal in (
        ("gradient-noise(scale=0.1)", "optimal-noise(scale=0.1, source='private')"),
        ("gradient-pruning(ratio=0.9)", "optimal-pruning(ratio=0.9, source='private')"),
    ):
        less, more = (
            run("plan_quality", **common, defense=d)["share"] for d in (classical, optimal)
        )
        assert less < more <= 1 + 1e-6


@pytest.mark.parametrize("shape", ["isotropic", "steep", "private"])
def test_plans_have_the_trace_of_isotropic_noise(shape):
    settings = {**PREDICTION, "shape": shape}
    net = build_model(MNIST["model"], 0).eval()
    planner = plan(settings, dataset("mnist"), net)
    traces = [fisher_trace(judge, planner.mechanism(judge)) for judge in planner.judges]
    wanted = [fisher_trace(judge, Mechanism(0.05)) for judge in planner.judges]
    assert sum(traces) == pytest.approx(sum(wanted), rel=1e-3)
    if shape == "isotropic":
        std = planner.mechanism(None).std
        assert all(torch.allclose(s, torch.full_like(s, 0.05)) for s in std.values())


@pytest.mark.slow
def test_shapes_win_by_their_own_utility():
    """At one trace, judged by other batches: each optimum costs less than isotropic noise."""
    shapes = {
        "Theorem 2": "U2",
        "curvature": "curvature",
        "total power": "total power",
        "adam": "Adam's step",
    }
    common = {**PREDICTION, "public": {"start": 3200, "size": 16, "batches": 8}}
    net = build_model(MNIST["model"], 0).eval()

    def costs(shape):
        settings = {**common, "shape": shape}
        return plan(settings, dataset("mnist"), net).utilities(settings)

    isotropic = costs("isotropic")
    for shape, cost in shapes.items():
        assert costs(shape)[cost] < isotropic[cost], shape


def test_a_training_that_diverges_has_no_loss():
    settings = {**PREDICTION, "shape": "isotropic", "scale": 1e5, "optimizer": "sgd", "lr": 1e10}
    assert run("training_prediction", **settings)["losses"][-1] is None


@pytest.mark.slow
@pytest.mark.parametrize("trained", [0, 60, 300])
def test_public_plans_never_lose_to_isotropic_noise(trained):
    """In the mean over 12 private batches, whatever the number and the kind of public examples."""
    settings = {
        **PUBLIC,
        **{"size": 16, "probes": 8, "public": 2000, "counts": [2, 8], "strange": 8},
        **{"population": 40, "trained": trained},
    }
    found = [run("public_plans", **settings, start=16 * k)["gains"] for k in range(12)]
    means = {name: sum(each[name] for each in found) / 12 for name in found[0]}
    ours = {n: m for n, m in means.items() if n.startswith(("shrunk", "model"))}
    assert len(ours) == 7
    assert min(ours.values()) > 0.995, ours
    if not trained:
        assert means["shrunk/8"] > 0.93 * means["limit/0"]


def test_official_data_need_a_folder(monkeypatch):
    monkeypatch.delenv("GRADVEIL_DATA", raising=False)
    dataset.cache_clear()
    with pytest.raises(FileNotFoundError, match="--data"):
        dataset("mnist-test")


@pytest.mark.slow
def test_the_bound_is_below_the_prior_and_grows_with_noise():
    common = {**MNIST, "start": 0, "size": 1, "prior_samples": 500, "seed": 0}
    found = [run("bound", **common, defense=f"gradient-noise(scale={s})") for s in (0.01, 0.1)]
    assert 0 < found[0]["bound"] < found[1]["bound"] < found[1]["prior_variance"]


@pytest.mark.parametrize(
    ("defense", "public"),
    [
        ("optimal-noise(scale=100.0, source='private')", None),
        ("gradient-noise(scale=1e-4)", None),
        ("optimal-noise(scale=1e-4)", {"start": 2000, "size": 2, "batches": 2}),
    ],
)
def test_candidates_are_told_apart(defense, public):
    found = run(
        "identification",
        **MNIST,
        start=0,
        size=2,
        examples=200,
        candidates=5,
        one_class=True,
        trials=2,
        defense=defense,
        public=public,
        seed=0,
    )
    assert found["right"] == [True, True]
    assert found["rank"] == [1.0, 1.0]
    assert found["bits"] == pytest.approx([2.321928] * 2, abs=1e-3)


@pytest.mark.parametrize("preset", ["quick", "standard", "paper"])
def test_every_estimator_of_the_study_can_be_built(preset: str):
    cells = [c for c in STUDIES["estimator-share"].cells(preset) if c.name == "estimator_share"]
    made = {cell.settings["estimator"]: noise_of(cell.settings) for cell in cells}
    assert any("PaperAlgorithm" in repr(defense) for defense in made.values())


def test_a_private_shape_needs_no_promise_of_an_error():
    """A batch of real digits has entries that move although their derivative is 0."""
    settings = {**MNIST, **PREDICTION, "shape": "private"}
    planner = plan(settings, dataset("mnist"), build_model("simple-conv-net"))
    moments = replace(planner.judges[0], hidden=3)
    std = planner.mechanism(moments).std
    assert isinstance(std, dict)
    assert all(bool(own.isfinite().all()) for own in std.values())

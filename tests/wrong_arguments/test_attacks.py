"""What attackers are told, attacks and scores."""

from pathlib import Path
from typing import Any

import torch

from gradveil import NoDefense, score
from gradveil.attacks import (
    CAFE,
    DLG,
    IDLG,
    Adaptive,
    Analytic,
    ExactInversion,
    GradInversion,
    InvertingGradients,
    Peel,
    ThreatModel,
    TotalVariation,
    VerticalNet,
    observe,
    recover_labels,
)
from gradveil.attacks._refine import Finish
from gradveil.scoring import bootstrap_interval
from tests.wrong_arguments.cases import (
    BATCH,
    INPUTS,
    NAN,
    TARGETS,
    Wrong,
    assert_refused,
    by_hand,
    cross_entropy,
    model,
    observation,
    seeded,
    table,
)

LOW, HIGH = torch.tensor(0.0), torch.tensor(1.0)


def hand(**changes: Any) -> Any:
    return lambda: by_hand(**changes)


def seen(batch: Any = BATCH, defense: Any = None, **changes: Any) -> Any:
    options = {"num_classes": 3, "generator": seeded(), **changes}
    chosen = NoDefense() if defense is None else defense
    return lambda: observe(model(), cross_entropy, batch, chosen, **options)


@table(
    (lambda: ThreatModel(labels="some"), "labels", "'some'"),
    (lambda: ThreatModel(labels=None), "labels", "None"),
    (lambda: ThreatModel(labels=["known"]), "labels", "['known']"),
    (lambda: ThreatModel(mechanism=True), "mechanism", "True"),
    (lambda: ThreatModel(statistics="x"), "statistics", "'x'"),
    (lambda: ThreatModel(statistics=1), "statistics", "1"),
    (lambda: ThreatModel(statistics=None), "statistics", "None"),
    (seen(batch=INPUTS), "batch", "Tensor"),
    (seen(batch=(INPUTS,)), "batch", "tuple of 1"),
    (seen(batch=(INPUTS, [0, 1, 2, 0])), "targets", "list"),
    (seen(batch=(INPUTS, TARGETS.float())), "targets", "torch.float32"),
    (seen(batch=(INPUTS, TARGETS[:2])), "targets", "(2,)"),
    (seen(batch=(INPUTS, TARGETS - 100)), "targets", "from -100 to -98"),
    (seen(batch=(INPUTS, TARGETS + 2**40)), "targets", str(2**40)),
    (seen(batch=(INPUTS.half(), TARGETS)), "inputs", "torch.float16"),
    (seen(defense="no-defense"), "defense", "'no-defense'"),
    (seen(threat="labels"), "threat", "'labels'"),
    (seen(num_classes=0), "num_classes", "0"),
    (seen(num_classes=2), "targets", "from 0 to 2"),
    (seen(input_range=LOW), "input_range", "Tensor"),
    (seen(input_range=(HIGH, LOW)), "low", "low = 1"),
    (seen(input_range=(torch.tensor(NAN), HIGH)), "low", "NaN"),
    (seen(input_range=(0.0, 1.0)), "low", "float"),
    (seen(local="steps"), "local", "'steps'"),
    (seen(generator=3), "generator", "3"),
    (hand(sent={}), "sent", "missing names"),
    (hand(sent=[1.0]), "sent", "[1.0]"),
    (hand(sent={"w": [1.0]}), "sent", "list for `w`"),
    (hand(sent={"w": torch.ones(1)}), "sent", "['w']"),
    (hand(batch_size=0), "batch_size", "0"),
    (hand(num_classes=-1), "num_classes", "-1"),
    (hand(input_shape=5), "input_shape", "5"),
    (hand(input_shape=(0,)), "input_shape", "(0,)"),
    (hand(low=HIGH, high=LOW), "low", "high = 0"),
    (hand(labels=torch.tensor([0.0, 1.0, 0.0, 1.0])), "labels", "torch.float32"),
    (hand(labels=[0, 1, 2, 0]), "labels", "list"),
    (hand(labels=torch.tensor([0, 1])), "labels", "(2,)"),
    (hand(label_counts=torch.tensor([1, 1, 1])), "label_counts", "sum 3"),
    (hand(label_counts=torch.tensor([-1, 4, 1])), "label_counts", "-1"),
    (hand(loss_fn=None), "loss_fn", "None"),
    (hand(model="mlp"), "model", "str"),
    (hand(defense="x"), "defense", "'x'"),
    (hand(mechanism=0.1), "mechanism", "0.1"),
)
def test_observations(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


@table(
    (lambda: InvertingGradients(0), "steps", "0"),
    (lambda: InvertingGradients(1.5), "steps", "1.5"),
    (lambda: InvertingGradients(lr=0.0), "lr", "0.0"),
    (lambda: InvertingGradients(lr=NAN), "lr", "nan"),
    (lambda: InvertingGradients(total_variation=-1.0), "total_variation", "-1.0"),
    (lambda: InvertingGradients(total_variation_end=-1.0), "total_variation_end", "-1.0"),
    (lambda: InvertingGradients(restarts=0), "restarts", "0"),
    (lambda: InvertingGradients(finish=True), "finish", "True"),
    (lambda: InvertingGradients(peel="yes"), "peel", "'yes'"),
    (lambda: InvertingGradients(unpool="yes"), "unpool", "'yes'"),
    (lambda: InvertingGradients(time_budget=-1.0), "time_budget", "-1.0"),
    (lambda: InvertingGradients(time_budget=NAN), "time_budget", "nan"),
    (lambda: InvertingGradients(3)(None), "observation", "None"),
    (lambda: InvertingGradients(3)(observation(), 5), "generator", "5"),
    (lambda: Adaptive("strong"), "unaware", "'strong'"),
    (lambda: Adaptive(prior=0.1), "prior", "0.1"),
    (lambda: Adaptive(restarts=-1), "restarts", "-1"),
    (lambda: Adaptive(finish=3), "finish", "3"),
    (lambda: Adaptive(time_budget=NAN), "time_budget", "nan"),
    (lambda: DLG(steps=0), "steps", "0"),
    (lambda: DLG(tolerance=-1.0), "tolerance", "-1.0"),
    (lambda: DLG()("x"), "observation", "'x'"),
    (lambda: IDLG(restarts=0), "restarts", "0"),
    (lambda: IDLG()({}), "observation", "{}"),
    (lambda: GradInversion(seeds=0), "seeds", "0"),
    (lambda: GradInversion(group=-1.0), "group", "-1.0"),
    (lambda: GradInversion()(None), "observation", "None"),
    (lambda: Analytic()([]), "observation", "[]"),
    (lambda: CAFE(steps=-1), "steps", "-1"),
    (lambda: CAFE()(observation()), "observation", "Observation"),
    (lambda: Peel(rounds=0), "rounds", "0"),
    (lambda: ExactInversion(rounds=0), "rounds", "0"),
    (lambda: ExactInversion(time_budget=NAN), "time_budget", "nan"),
    (lambda: ExactInversion(progress=3), "progress", "3"),
    (lambda: ExactInversion()(None), "observation", "None"),
    (lambda: Finish(steps=0), "steps", "0"),
    (lambda: Finish(widths=0.1), "widths", "0.1"),
    (lambda: Finish(widths=(0.1, -1.0)), "widths", "-1.0"),
    (lambda: TotalVariation(strength=-1.0), "strength", "-1.0"),
    (lambda: recover_labels(None), "observation", "None"),
    (lambda: VerticalNet((1, 8, 8), 0), "num_classes", "0"),
    (lambda: VerticalNet((1, 8, 8), 3, hidden=0), "hidden", "0"),
    (lambda: VerticalNet((1, 8, 8), 3, workers=0), "workers", "0"),
    (lambda: VerticalNet((1, 8, 8), 3, workers=100), "workers", "of 8 entries"),
    (lambda: VerticalNet(5, 3), "input_shape", "5"),
    (
        lambda: CAFE.observe(
            model(), cross_entropy, BATCH, NoDefense(), num_classes=3, batch_size=2, iterations=1,
            generator=seeded(),
        ),
        "model",
        "Sequential",
    ),
)  # fmt: skip
def test_attacks(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


IMAGES = torch.rand(2, 3, 8, 8, generator=seeded())


@table(
    (lambda: score([1.0], IMAGES), "reconstruction", "list"),
    (lambda: score(IMAGES, [1.0]), "truth", "list"),
    (lambda: score(IMAGES, None), "truth", "NoneType"),
    (lambda: score(IMAGES, (IMAGES, [0, 1])), "truth", "list"),
    (lambda: score(IMAGES[:1], IMAGES), "reconstruction", "(1, 3, 8, 8)"),
    (lambda: score(IMAGES.long(), IMAGES), "reconstruction", "torch.int64"),
    (lambda: score(IMAGES * NAN, IMAGES), "reconstruction", "NaN"),
    (lambda: score(IMAGES, IMAGES, normalization="imagenet"), "normalization", "'imagenet'"),
    (lambda: score(IMAGES, IMAGES, normalization=3), "normalization", "int"),
    (lambda: score(IMAGES, IMAGES, normalization=((0.5,) * 2, (1.0,))), "normalization", "2 means"),
    (lambda: score(IMAGES, IMAGES, normalization=((NAN,), (1.0,))), "normalization", "nan"),
    (lambda: score(IMAGES, IMAGES, normalization=((0.5,), (0.0,))), "normalization", "[0.0]"),
    (lambda: score(IMAGES, IMAGES, ssim="yes"), "ssim", "'yes'"),
    (lambda: bootstrap_interval([]), "values", "[]"),
    (lambda: bootstrap_interval("abc"), "values", "abc"),
    (lambda: bootstrap_interval(torch.tensor([NAN])), "values", "finite: False"),
)
def test_scores(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)

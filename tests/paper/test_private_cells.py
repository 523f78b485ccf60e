"""Private trainings as cells: the ways to a gradient agree where they should, and ε is kept."""

from copy import deepcopy

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil._random import named_stream
from gradveil._tensors import flatten
from gradveil.models import build_model
from paper.cells import dataset
from paper.study import cell_of
from paper.trainings import WAYS, private_training
from tests.hiding import run_without
from tests.paper.test_cells import executed

pytest.importorskip("opacus")

SIZE, CLIP = 16, 0.3
SETTINGS = {
    "data": "mnist",
    "model": "simple-conv-net",
    "delta": 1e-5,
    "clip": CLIP,
    "batch_size": SIZE,
    "steps": 2,
    "examples": 64,
    "lr": 1e-3,
    "public": {"start": 100, "count": 8, "refresh": 1},
    "held_out_start": 200,
    "held_out": 32,
    "seed": 0,
}


def gradient(way, multiplier, clip=CLIP):
    """The gradient of the first examples at fresh weights."""
    net = build_model("simple-conv-net", 0)
    settings = {**SETTINGS, "clip": clip, "way": way}
    noise = named_stream("studies", 0, "noise", 0)
    WAYS[way](net, settings, multiplier, noise)(0, *dataset("mnist").batch(0, SIZE))
    return flatten({name: p.grad for name, p in net.named_parameters()})


@pytest.mark.slow
@pytest.mark.parametrize(("way", "epsilon"), [("shaped", 8.0), ("opacus", 8.0), ("plain", None)])
def test_a_cell_gives_the_same_bytes_twice(way, epsilon):
    cell = cell_of("private_training", {**SETTINGS, "way": way, "epsilon": epsilon})
    first, second = (executed(cell) for _ in range(2))
    assert first == second


def test_without_noise_all_clip_as_a_loop_over_examples_does():
    net, wanted = build_model("simple-conv-net", 0), 0
    for image, label in zip(*dataset("mnist").batch(0, SIZE), strict=True):
        net.zero_grad()
        cross_entropy(net(image[None]), label[None]).backward()
        own = flatten({name: p.grad.clone() for name, p in net.named_parameters()})
        wanted = wanted + own * min(1.0, CLIP / float(own.norm())) / SIZE
    for way in ("isotropic", "opacus"):
        error = (gradient(way, 1e-4) - wanted).norm() / wanted.norm()
        assert float(error) < 0.02, way


@pytest.mark.parametrize("way", ["isotropic", "shaped", "opacus"])
def test_the_noise_has_the_size_that_was_accounted_for(way):
    noise = gradient(way, 2.0) - gradient(way, 1e-4)
    assert float(noise.square().mean().sqrt()) == pytest.approx(2.0 * CLIP / SIZE, rel=0.02)


def test_ways_agree_with_the_plain_gradient_where_nothing_is_clipped():
    wanted = gradient("plain", 0.0)
    for way in ("isotropic", "shaped", "opacus"):
        error = (gradient(way, 1e-4, clip=20.0) - wanted).norm() / wanted.norm()
        assert float(error) < 0.03, way


@pytest.mark.slow
def test_epsilon_is_kept_and_opacus_counts_alike():
    found = private_training({**SETTINGS, "way": "opacus", "epsilon": 3.0})
    assert 2.9 < found["epsilon"] <= 3.0
    assert found["epsilon_opacus"] == pytest.approx(found["epsilon"], abs=0.05)
    plain = private_training({**SETTINGS, "way": "plain", "epsilon": None})
    assert plain["epsilon"] is None
    assert plain["noise_multiplier"] is None


def test_the_model_of_other_cells_stays_as_it_is():
    from paper.cells import model

    before = deepcopy(model({**SETTINGS, "model_seed": 0}).state_dict())
    private_training({**SETTINGS, "way": "isotropic", "epsilon": 8.0})
    after = model({**SETTINGS, "model_seed": 0}).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_without_opacus_the_cell_says_what_to_install():
    code = (
        "from paper.trainings import private_training\n"
        f"settings = {{**{SETTINGS!r}, 'way': 'isotropic', 'epsilon': 8.0}}\n"
        "try:\n    private_training(settings)\n"
        "except ModuleNotFoundError as error:\n    print('ModuleNotFoundError', error)\n"
    )
    found = run_without(("opacus",), code)
    assert found.stdout.startswith("ModuleNotFoundError"), found.stderr
    assert "gradveil[privacy]" in found.stdout

import pytest
import torch

from gradveil import GradientNoise
from gradveil.attacks import InvertingGradients
from gradveil.attacks._descent import Watch
from gradveil.attacks._matching import cosine_distance
from gradveil.attacks._model_layers import random_examples
from gradveil.attacks._refine import Finish
from gradveil.attacks._targets import Run
from gradveil.messages import LocalSteps

from .tiny import conv_net, error, generator, observed, smooth_images

QUICK = InvertingGradients.strong(steps=60, restarts=1, total_variation_end=3e-4, peel=None)


@pytest.mark.parametrize(
    ("channels", "shape", "labels", "bias"),
    [
        (1, (6, 6), [2], True),
        (3, (6, 6), [0, 1], True),
        (1, (5, 8), [3, 3], True),
        (1, (6, 6), [0, 2], False),
    ],
    ids=["one gray image", "two in colour", "not square, labels repeated", "no bias"],
)
def test_it_rebuilds_images(channels, shape, labels, bias):
    truth = smooth_images(len(labels), channels, shape)
    observation = observed(conv_net(channels, shape, bias=bias), truth, labels)
    found = QUICK(observation, generator())
    order = [0, 1] if error(found.inputs, truth) < error(found.inputs.flip(0), truth) else [1, 0]
    arranged = (
        found.inputs[order[: len(labels)]] if len(set(labels)) < len(labels) else found.inputs
    )
    assert error(arranged, truth) < 1e-3
    assert found.inputs.shape == truth.shape
    assert found.status == "finished"


def test_total_variation_is_in_units_of_the_root_of_random_distances():
    truth = smooth_images(2, 1, (6, 6))
    observation = observed(conv_net(1, (6, 6)), truth, [0, 1])
    run = Run(observation, torch.tensor([0, 1]), generator(), Watch(None))
    drawn = random_examples(observation, 8 * 2, generator()).split(2)
    distances = [cosine_distance(run.message(inputs), run.sent) for inputs in drawn]
    unit = InvertingGradients(total_variation_end=1e-7)._unit(run, generator())
    assert 0 < unit < 1
    torch.testing.assert_close(unit.square(), torch.stack(distances).median())


def test_it_works_in_float64_and_for_local_updates():
    truth = smooth_images(2, 1, (5, 5)).double()
    model = conv_net(1, (5, 5)).double()
    local = LocalSteps(lr=0.1, steps=2, batch_size=1)
    observation = observed(model, truth, [0, 1], local=local)
    found = QUICK(observation, generator())
    assert found.inputs.dtype == torch.float64
    assert error(found.inputs, truth) < 1e-3


@pytest.mark.parametrize("knowledge", ["counts", "unknown"])
def test_labels_that_are_not_granted_are_found(knowledge):
    truth = smooth_images(1, 1, (6, 6))
    observation = observed(conv_net(1, (6, 6)), truth, [3], label_knowledge=knowledge)
    found = QUICK(observation, generator())
    assert found.targets.tolist() == [3]
    assert error(found.inputs, truth) < 1e-3


def test_of_several_starts_the_one_with_the_least_own_cost_wins():
    observation = observed(conv_net(1, (6, 6), smooth=False), smooth_images(2, 1, (6, 6)), [1, 1])
    attack = InvertingGradients(steps=20, restarts=3)
    run = Run(observation, observation.labels, generator(), Watch(None))
    start = run.noise(3)
    cost = attack._cost(run, torch.ones(()))
    alone = [attack._minimise(run, cost, start[i : i + 1], run.watch) for i in range(3)]
    found = attack(observation, generator())
    assert found.loss == pytest.approx(min(float(m.costs) for m in alone), rel=1e-3)


@pytest.mark.slow
def test_the_finish_gets_closer():
    truth = smooth_images(2, 1, (6, 6))
    observation = observed(conv_net(1, (6, 6), smooth=False), truth, [0, 1])
    rough, fine = (
        InvertingGradients.strong(steps=60, restarts=1, finish=finish, peel=None)(
            observation, generator()
        )
        for finish in (None, Finish())
    )
    assert error(fine.inputs, truth) < min(1e-4, error(rough.inputs, truth))


def test_under_noise_it_still_returns_something_in_the_range():
    truth = smooth_images(2, 1, (6, 6))
    observation = observed(conv_net(1, (6, 6)), truth, [0, 1], GradientNoise(0.3))
    found = QUICK(observation, generator())
    assert float(found.inputs.abs().max()) <= 1


def test_same_seed_same_result_and_no_global_randomness():
    observation = observed(conv_net(1, (5, 5)), smooth_images(1, 1, (5, 5)), [0])
    before = torch.get_rng_state()
    attack = InvertingGradients(steps=5)
    first, second = attack(observation, generator(1)), attack(observation, generator(1))
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(before, torch.get_rng_state())


def test_a_time_budget_is_kept_and_said():
    observation = observed(conv_net(1, (5, 5)), smooth_images(1, 1, (5, 5)), [0])
    found = InvertingGradients.strong(steps=10**6, time_budget=0.2)(observation, generator())
    assert found.status == "time budget"


def test_the_presets_are_the_documented_ones():
    paper = InvertingGradients.paper()
    assert (paper.lr, paper.total_variation, paper.restarts) == (0.2, 1e-6, 1)
    assert paper.finish is None

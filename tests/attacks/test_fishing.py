import pytest
import torch
from torch import nn

from gradveil import NoDefense
from gradveil.attacks import Fishing, InvertingGradients, ThreatModel, observe
from gradveil.attacks._malicious import _without

from .small import LOSS, RANGE, seeded, smooth_images


def model_of(outputs: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(),
        nn.Linear(24, outputs),
    )  # fmt: skip


def observed(attack: Fishing, labels: list[int], grant: str = "known"):
    planted = attack.plant(model_of())
    inputs = smooth_images(len(labels), 1, 6, 6)[0]
    batch = (inputs, torch.tensor(labels))
    threat = ThreatModel(labels=grant, server="malicious")
    return observe(
        planted, LOSS, batch, NoDefense(), threat=threat, num_classes=4, input_range=RANGE
    ), batch


def test_only_the_class_reaches_the_earlier_layers():
    attack = Fishing(2)
    observation, (inputs, labels) = observed(attack, [0, 1, 2, 3, 3, 0, 1, 1])
    alone = observation.plain_message(labels[2:3])(inputs[2:3])
    for name in ("0.weight", "3.weight", "3.bias"):
        torch.testing.assert_close(8 * observation.sent[name], alone[name], rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_one_image_of_the_class_is_caught_from_a_batch():
    attack = Fishing(2, InvertingGradients.strong(steps=150))
    observation, (inputs, labels) = observed(attack, [0, 1, 2, 3, 3, 0, 1, 1])
    caught = attack(observation, seeded())
    assert caught.inputs.shape == inputs.shape
    assert sorted(caught.targets.tolist()) == sorted(labels.tolist())
    assert float((caught.inputs[0] - inputs[2]).square().mean()) < 1e-3
    assert not bool(caught.inputs[1:].any())


@pytest.mark.parametrize(("labels", "count"), [([0, 1, 1, 3], 1), ([2, 2, 0, 2], 3)])
def test_the_bias_tells_how_many_there_are(labels, count):
    attack = Fishing(2)
    assert attack._count(observed(attack, labels, "unknown")[0]) == count


def test_the_other_labels_are_kept():
    assert _without(torch.tensor([1, 2, 2, 3]), 2, 1).tolist() == [1, 2, 3]
    assert _without(torch.tensor([1, 1, 3]), 2, 1).tolist() == [1, 1]


def test_models_without_such_a_head_are_refused():
    with pytest.raises(ValueError, match="a row for class 4"):
        Fishing(4).plant(model_of())
    with pytest.raises(ValueError, match="Found no such layer"):
        Fishing(0).plant(nn.Flatten())

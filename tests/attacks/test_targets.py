"""Targets that the attacker was not told."""

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, l1_loss, mse_loss

from gradveil import NoDefense
from gradveil.attacks import (
    DLG,
    IDLG,
    InvertingGradients,
    Observation,
    ThreatModel,
    observe,
    recover_labels,
)
from gradveil.attacks._descent import order_like
from gradveil.attacks._dlg import soft_targets
from gradveil.attacks._targets import labels_of
from gradveil.models import build_model

GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(2, 6, generator=GENERATOR)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def seen(model: nn.Module, loss_fn, inputs, targets, labels: str = "unknown") -> Observation:
    batch, threat = (inputs, targets), ThreatModel(labels=labels)
    return observe(model, loss_fn, batch, NoDefense(), threat=threat)


def perceptron(outputs: int) -> nn.Module:
    return build_model("mlp", sizes=[6, 12, outputs], activation="sigmoid")


def test_observations_say_what_targets_are():
    numbers = seen(perceptron(2), mse_loss, ROWS, ROWS[:, :2], "known")
    assert (numbers.task, numbers.target_shape) == ("numbers", (2,))
    assert torch.equal(numbers.labels, ROWS[:, :2])
    assert numbers.label_counts is None
    assert seen(perceptron(2), mse_loss, ROWS, ROWS[:, :2]).labels is None


def test_class_labels_need_the_number_of_classes():
    with pytest.raises((TypeError, ValueError), match="num_classes"):
        seen(perceptron(2), cross_entropy, ROWS, torch.tensor([0, 1]))


def test_granted_targets_are_taken_as_they_are():
    observation = seen(perceptron(2), mse_loss, ROWS, ROWS[:, :2], "known")
    assert torch.equal(labels_of(observation, generator()), ROWS[:, :2])
    assert torch.equal(recover_labels(observation), ROWS[:, :2])


@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_numbers_of_any_size_are_found_for_one_example(factor):
    """Without knowing their size beforehand: the message's own size gives the scale."""
    targets = factor * torch.tensor([[0.7, -1.9]])
    observation = seen(perceptron(2), mse_loss, ROWS[:1], targets)
    found = labels_of(observation, generator())
    assert float((found - targets).norm() / targets.norm()) < 0.2


def test_dlg_looks_for_yes_or_no_labels():
    targets = torch.tensor([[1.0, 0.0, 1.0]])
    observation = seen(perceptron(3), binary_cross_entropy_with_logits, ROWS[:1], targets)
    found = DLG(steps=300, restarts=2)(observation, generator())
    assert torch.equal(found.targets.round(), targets)
    assert float((found.inputs - ROWS[:1]).square().mean()) < 0.05


def test_soft_labels_take_the_layout_of_the_loss():
    vectors, labels = torch.randn(2, 3, 6, generator=GENERATOR), torch.tensor([[0, 1, 2]] * 2)
    model = nn.Linear(6, 4)

    def second(scores, targets):
        return cross_entropy(scores.transpose(1, 2), targets)

    def last(scores, targets):
        return cross_entropy(scores.flatten(0, 1), targets.flatten(0, 1))

    for loss, shape, place in ((second, (2, 4, 3), 1), (last, (2, 3, 4), -1)):
        soft = soft_targets(seen(model, loss, vectors, labels))
        assert (tuple(soft.blank.shape), soft.classes) == (shape, place)
        logits = torch.randn(shape, generator=generator())
        assert soft.of(logits, settled=True).shape == labels.shape
        torch.testing.assert_close(soft.of(logits).sum(place), torch.ones(2, 3))


def test_what_hides_the_targets_is_said():
    with pytest.raises(ValueError, match=r"derivative is 0.*labels='known'"):
        labels_of(seen(perceptron(2), l1_loss, ROWS, ROWS[:, :2]), generator())
    labels = torch.tensor([[0, 1], [2, 0]])

    def picked(scores, targets):
        rows = scores.reshape(-1, 3).log_softmax(-1)
        return -rows[torch.arange(len(rows)), targets.flatten()].mean()

    observation = seen(perceptron(6), picked, ROWS, labels)
    with pytest.raises(ValueError, match=r"should take probabilities of classes.*labels='known'"):
        labels_of(observation, generator())


def test_labels_are_read_off_for_classes_only():
    observation = seen(perceptron(2), mse_loss, ROWS, ROWS[:, :2])
    for attack in (recover_labels, IDLG(steps=2)):
        with pytest.raises(ValueError, match="targets that are numbers"):
            attack(observation)


def test_an_attack_with_known_numbers_finds_the_inputs():
    model = build_model("mlp", sizes=[6, 32, 2], activation="sigmoid")
    observation = seen(model, mse_loss, ROWS, 3 * ROWS[:, :2] + 1, "known")
    found = InvertingGradients(400, total_variation=0.0)(observation, generator())
    assert float((found.inputs - ROWS).square().mean()) < 0.05
    assert torch.equal(found.targets, 3 * ROWS[:, :2] + 1)


def test_examples_change_places_only_where_their_targets_are_equal():
    reference = torch.tensor([[0.0], [1.0], [2.0]])
    swapped = reference[[1, 0, 2]]
    equal, different = torch.tensor([[5.0, 1.0]] * 3), torch.tensor([[5.0], [6.0], [7.0]])
    assert order_like(swapped, reference, equal).tolist() == [1, 0, 2]
    assert order_like(swapped, reference, different).tolist() == [0, 1, 2]

"""Losses by name."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from gradveil.models import build_loss

SCORES = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))


def own_loss(outputs, targets):
    return (outputs - targets).abs().mean()


def test_cross_entropy_takes_classes_second_or_last():
    loss, tags, maps = build_loss("cross-entropy"), torch.ones(4, 3).long(), torch.ones(4, 5).long()
    torch.testing.assert_close(loss(SCORES, maps), cross_entropy(SCORES, maps))
    torch.testing.assert_close(loss(SCORES, tags), cross_entropy(SCORES.transpose(1, 2), tags))
    assert build_loss(None) is cross_entropy
    torch.testing.assert_close(build_loss(None, "labels")(SCORES, maps), loss(SCORES, maps))


def test_one_output_for_each_example_is_compared_with_its_own_target():
    outputs, targets = SCORES[:, :1, 0], torch.tensor([0.0, 1.0, 1.0, 0.0])
    torch.testing.assert_close(
        build_loss("mse")(outputs, targets), mse_loss(outputs[:, 0], targets)
    )
    torch.testing.assert_close(
        build_loss("bce")(outputs, targets),
        binary_cross_entropy_with_logits(outputs[:, 0], targets),
    )


def test_own_functions_by_path():
    found = build_loss("tests.models.test_losses:own_loss", allow_imports=True)
    assert found is own_loss or found.__name__ == "own_loss"
    with pytest.raises(ValueError, match="would run code"):
        build_loss("tests.models.test_losses:own_loss")
    with pytest.raises(ValueError, match="Python function of yours"):
        build_loss("os:system", allow_imports=True)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="`loss` should be given where targets are numbers"):
        build_loss(None, "numbers")
    with pytest.raises(ValueError, match="Did you mean `mse`"):
        build_loss("mes")
    with pytest.raises(ValueError, match="`loss` should be"):
        build_loss(3)

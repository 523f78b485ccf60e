"""Pixelization, MixUp and InstaHide send the message of other inputs."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from gradveil import GradientMessage, LocalUpdateMessage
from gradveil.defenses import InstaHide, MixUp, Pixelization
from gradveil.messages import MappedMessage

from .small_rivals import LABELS, assert_alike, gradient, images, model, seeded


def naive_blocks(image: Tensor, size: int) -> Tensor:
    made = image.clone()
    for top in range(0, image.shape[-2], size):
        for left in range(0, image.shape[-1], size):
            block = (..., slice(top, top + size), slice(left, left + size))
            made[block] = image[block].mean((-2, -1), keepdim=True)
    return made


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_blocks_become_their_means(size: int) -> None:
    batch = torch.randn(2, 3, 5, 7, generator=seeded())
    torch.testing.assert_close(Pixelization(size).pixelated(batch), naive_blocks(batch, size))


def test_what_is_inside_of_blocks_is_not_in_the_message() -> None:
    defense, batch = Pixelization(3), images()
    sent = defense(gradient(), batch)
    assert_alike(sent, gradient()(naive_blocks(batch, 3)))
    moved = batch.clone()
    moved[..., :3, :3] = moved[..., :3, :3].flip(-1)
    assert_alike(defense(gradient(), moved), sent)
    assert_alike(defense.prepared(gradient())(batch), sent)


def test_only_images_are_pixelated() -> None:
    with pytest.raises(ValueError, match=r"should be images.*\(4, 36\)"):
        Pixelization(2)(gradient(), images().flatten(1))


def soft(weight: float) -> Tensor:
    ones = one_hot(LABELS, 3).float()
    return weight * ones + (1 - weight) * ones.roll(-1, 0)


def mixed(weight: float, batch: Tensor) -> Tensor:
    return weight * batch + (1 - weight) * batch.roll(-1, 0)


def test_mixed_examples_have_the_message_of_soft_labels() -> None:
    defense, batch = MixUp(0.7), images()
    expected = GradientMessage(model(), cross_entropy, soft(0.7))(mixed(0.7, batch))
    assert_alike(defense(gradient(), batch), expected)
    assert_alike(defense.prepared(gradient())(batch), expected)


def test_updates_of_mixed_examples() -> None:
    def update(targets: Tensor) -> LocalUpdateMessage:
        return LocalUpdateMessage(model(), cross_entropy, targets, lr=0.1, steps=2, batch_size=2)

    sent = MixUp(0.6)(update(LABELS), images())
    assert_alike(sent, update(soft(0.6))(mixed(0.6, images())))


def test_with_weight_1_and_alone_nothing_is_mixed() -> None:
    plain = gradient()(images())
    assert_alike(MixUp(1.0)(gradient(), images()), plain)
    alone = gradient(LABELS[:1])
    assert_alike(MixUp(0.3)(alone, images(1)), alone(images(1)))


def test_insta_hide_flips_signs_of_mixed_examples() -> None:
    defense, batch = InstaHide(3, seed=5), images()
    seen: list[Tensor] = []
    message = defense.prepared(gradient())
    assert isinstance(message, MappedMessage)
    assert message.before is not None
    seen = [message.before(batch), message.before(2 * batch)]
    weights = defense.weights()
    assert sum(weights) == pytest.approx(1)
    assert max(weights) <= 0.65
    plain = torch.stack([w * batch.roll(-j, 0) for j, w in enumerate(weights)]).sum(0)
    torch.testing.assert_close(seen[0].abs(), plain.abs())
    flipped = (seen[0].sign() != plain.sign()).float().mean()
    assert 0.35 < float(flipped) < 0.65
    assert torch.equal(seen[0].sign(), seen[1].sign())  # the same signs every time
    labels = sum(w * one_hot(LABELS, 3).float().roll(-j, 0) for j, w in enumerate(weights))
    expected = GradientMessage(model(), cross_entropy, labels)(seen[0])
    assert_alike(defense(gradient(), batch), expected)
    other = InstaHide(3, seed=6)(gradient(), batch)
    assert not torch.allclose(other["3.weight"], expected["3.weight"])


def test_plans_say_nothing_of_the_batch_and_cannot_be_taken_apart() -> None:
    for defense in (Pixelization(2), MixUp(), InstaHide()):
        assert not defense.about.private
        with pytest.raises(TypeError, match="changes the inputs first"):
            defense.accumulate(model(), cross_entropy)


def test_a_message_without_targets_cannot_be_mixed() -> None:
    with pytest.raises(TypeError, match="targets"):
        MixUp()(lambda inputs: {"w": inputs.sum(0)}, images())
    with pytest.raises(TypeError, match="one target for each example"):
        MixUp()(GradientMessage(model(), lambda o, _: o.sum(), None), images())


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Pixelization(0), "size"),
        (lambda: MixUp(1.2), "weight"),
        (lambda: InstaHide(0), "images"),
        (lambda: InstaHide(2, seed=-1), "seed"),
    ],
)
def test_bad_options(make: type, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        make()

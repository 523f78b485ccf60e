import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gradveil import GradientPruning
from gradveil.defenses import ErrorFeedback

from .small_rivals import assert_alike, gradient, images, model, seeded

Tensors = dict[str, Tensor]


def test_what_was_sent_and_what_is_held_back_is_all_there_was() -> None:
    defense, message = ErrorFeedback(0.8), gradient()
    total: Tensors = {}
    sent: Tensors = {}
    for seed in range(5):
        plain, step = message(images(seed=seed)), defense(message, images(seed=seed))
        total = {n: total.get(n, 0) + value for n, value in plain.items()}
        sent = {n: sent.get(n, 0) + value for n, value in step.items()}
    held = defense.state_dict()["held_back"]
    assert_alike({n: sent[n] + held[n] for n in sent}, total)
    assert any(bool(h.any()) for h in held.values())


def test_the_first_step_is_magnitude_pruning_and_the_second_is_not() -> None:
    defense, message = ErrorFeedback(0.7), gradient()
    pruned = GradientPruning(0.7)(message, images())
    assert_alike(defense(message, images()), pruned)
    second = defense(message, images())
    assert not torch.equal(second["3.weight"], pruned["3.weight"])


def test_it_sends_the_share_that_is_not_held_back() -> None:
    sent = ErrorFeedback(0.75)(gradient(), images())
    entries = sum(value.numel() for value in sent.values())
    assert sum(int((v != 0).sum()) for v in sent.values()) == entries - round(0.75 * entries)


def test_a_state_continues_and_an_attacker_gets_none_of_it() -> None:
    first, second, message = ErrorFeedback(0.7), ErrorFeedback(0.7), gradient()
    assert first.without_memory().state_dict() == {}
    first(message, images())
    second.load_state_dict(first.state_dict())
    assert_alike(second(message, images(seed=1)), first(message, images(seed=1)))
    assert first.without_memory().state_dict() == {}
    assert first.state_dict() != {}
    first.reset()
    assert first.state_dict() == {}
    with pytest.raises(ValueError, match="held_back"):
        first.load_state_dict({"step": 1})


def test_what_is_held_back_has_to_fit() -> None:
    defense = ErrorFeedback(0.7)
    defense(gradient(), images())
    with pytest.raises(ValueError, match="what was held back"):
        defense(lambda inputs: {"w": inputs.sum(0)}, images())


def test_micro_batches_are_refused() -> None:
    with pytest.raises(TypeError, match="no `respond` of its own"):
        ErrorFeedback(0.7).accumulate(model(), cross_entropy, seeded())


def test_bad_ratios() -> None:
    with pytest.raises(ValueError, match="ratio"):
        ErrorFeedback(1.5)

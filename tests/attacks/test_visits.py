"""Visits are the examples of the steps, in the order of `LocalUpdateMessage`."""

import torch

from gradveil.attacks._peel import Visits, head_of
from gradveil.messages import LocalSteps

from .local_nets import conv_net
from .small import LOSS, observed, seeded, smooth_images


def test_mini_batches_are_those_of_the_message():
    local = LocalSteps(0.1, 5, batch_size=2)
    message = local.message(conv_net(), LOSS, torch.arange(5))
    batches = message.batches(torch.arange(5.0)[:, None])
    visits = Visits.of(local, 5)
    for number, step in enumerate(visits.steps):
        assert torch.equal(step, batches[number % len(batches)][1])
    assert [rows.tolist() for rows in visits.rows] == [[0, 1], [2, 3], [4], [5, 6], [7, 8]]


def test_examples_of_the_same_steps_are_alike():
    alike = Visits.of(LocalSteps(0.1, 3, batch_size=2), 4).alike
    assert [part.tolist() for part in alike] == [[[0, 4], [1, 5]], [[2], [3]]]


def test_steps_that_end_early_do_not_cover_the_batch():
    batch = smooth_images(4, 1, 8, 8)
    for size, covered in ((2, False), (None, True)):
        local = LocalSteps(0.1, 1, batch_size=size)
        assert (head_of(observed(conv_net(), batch, local=local), seeded()) is not None) == covered

"""A client with text, and a server that plans from public text."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import FromServer, OptimalNoise
from gradveil.federated import Client, Planner, evaluate
from gradveil.models import next_token_loss
from tests.text import CLASSES, sequences, transformer


@pytest.mark.parametrize("causal", [False, True])
def test_a_client_takes_the_shape_of_public_text(causal):
    ids, public, model = sequences(6), sequences(8, seed=1), transformer(causal)
    loss_fn = next_token_loss if causal else cross_entropy
    targets, known = (x if causal else torch.arange(len(x)) % CLASSES for x in (ids, public))
    client = Client(0, ids, targets, OptimalNoise(0.1, source=FromServer()), batch_size=3, seed=0)
    client.use(Planner((public, known), loss_fn, batch_size=4).plan(1, model).shape)
    sent = client.reply(model, loss_fn).values
    assert all(bool((value != 0).all()) for value in sent.values())
    assert evaluate(model, loss_fn, ids, targets).loss > 0

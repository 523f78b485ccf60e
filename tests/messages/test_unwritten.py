"""Nothing is written into the user's model while a message is computed."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, GradientNoise, LocalUpdateMessage, NoDefense, PrivateNoise
from gradveil.federated import Client


class Renormalises(nn.Module):
    """Rows of the tokens it reads are rescaled in place, by a function and not by a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(5 * torch.randn(6, 4)), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        rows = nn.functional.embedding(ids, self.table, max_norm=1.0)
        return self.head(rows.mean(1))


IDS, LABELS = torch.tensor([[0, 3], [3, 5]]), torch.tensor([0, 1])


def test_an_embedding_with_a_largest_norm_is_refused():
    model = nn.Sequential(nn.Embedding(6, 4, max_norm=1.0), nn.Flatten(), nn.Linear(8, 2))
    for make in (GradientMessage, lambda *a: LocalUpdateMessage(*a, lr=0.1, steps=1)):
        with pytest.raises(ValueError, match=r"layer `0` \(Embedding, max_norm=1.0\)"):
            make(model, cross_entropy, LABELS)


@pytest.mark.parametrize("unit", ["example", "client"])
def test_the_weights_of_a_private_client_do_not_tell_its_tokens(unit: str):
    model = Renormalises()
    before = model.table.detach().clone()
    defense = PrivateNoise(50.0, 1.0, batch_size=2 if unit == "example" else None, unit=unit)
    client = Client(0, IDS, LABELS, defense, batch_size=2, seed=None)
    with pytest.raises(ValueError, match=r"weights as they are|wrote into|max_norm"):
        client.reply(model, cross_entropy)
    assert torch.equal(model.table, before)


@pytest.mark.parametrize("defense", [NoDefense(), GradientNoise(0.1)])
def test_other_messages_notice_it(defense):
    with pytest.raises(ValueError, match="`table` was changed in place"):
        defense.backward(Renormalises(), cross_entropy, IDS, LABELS)


class Stores(nn.Module):
    """Keeps what it saw in an attribute, as models do for their users to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        self.seen.append(x)
        return self.layer(x)


@pytest.mark.parametrize("unit", ["example", "client"])
def test_attributes_of_the_module_stay(unit: str):
    model = Stores()
    defense = PrivateNoise(1.0, 1.0, batch_size=2 if unit == "example" else None, unit=unit)
    defense.backward(model, cross_entropy, torch.ones(2, 3), LABELS)
    assert not hasattr(model, "last")
    assert model.seen == []

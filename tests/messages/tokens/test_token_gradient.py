"""Integer inputs: the gradient itself, and as a function of the embeddings."""

import pytest
import torch
from torch import nn
from torch.func import jacrev
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, measure
from gradveil.messages import TokenGradient, over_rows, random_ids
from tests.text import TOKENS, Columns, generator, message_of, sequences, transformer


class WithEmbeddings(nn.Module):
    """The same model on embeddings that are given, for an oracle that needs no watching."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        places = torch.arange(embeddings.shape[1])
        model = self.model
        hidden = model.norm(model.blocks(embeddings + model.positions(places)))
        return model.head(hidden if model.causal else hidden.mean(1))


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_gradient(causal):
    ids = sequences(3)
    message = message_of(causal, ids)
    model = message.loss.model
    loss = message.loss.loss_fn(model(ids), message.targets)
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    for values in (message(ids), message.values(ids), message(ids.int())):
        for (name, _), gradient in zip(model.named_parameters(), wanted, strict=True):
            torch.testing.assert_close(values[name], gradient)


@pytest.mark.parametrize("causal", [False, True])
def test_exact_sensitivities_are_those_to_the_embeddings(causal):
    ids = sequences(2, length=3)
    message = message_of(causal, ids, transformer(causal, width=4, depth=1).double())
    model = message.loss.model
    moments = measure(message, ids, "exact")
    oracle = GradientMessage(WithEmbeddings(model), message.loss.loss_fn, message.targets)
    start = model.embed(ids).detach()
    jacobian = jacrev(oracle)(start)
    assert moments.input_size == start.numel()
    for name, square in moments.squared_sensitivities.items():
        if name == "embed.weight":
            continue
        wanted = jacobian[f"model.{name}"].flatten(-3).square().sum(-1)
        torch.testing.assert_close(square, wanted)


def test_the_table_moves_with_the_embeddings_and_its_rows_are_pooled():
    ids = torch.tensor([[3, 1, 3]])
    message = message_of(False, ids, transformer(False, width=4, depth=1).double())
    seen, start = message.embedded(ids)
    oracle = WithEmbeddings(message.loss.model)

    def rows(embeddings: torch.Tensor) -> torch.Tensor:
        loss = lambda e: cross_entropy(oracle(e), message.targets)  # noqa: E731
        signal = torch.func.grad(loss)(embeddings)[0]
        return torch.zeros(TOKENS, 4).double().index_add(0, ids[0], signal)

    torch.testing.assert_close(seen(start)["embed.weight"], rows(start))
    jacobian = jacrev(rows)(start).flatten(2).square().sum(-1)
    measured = measure(message, ids, "exact").squared_sensitivities["embed.weight"]
    torch.testing.assert_close(measured, jacobian.mean(0).expand(TOKENS, 4))


def test_embeddings_can_be_differentiated_by_autograd():
    ids = sequences(2)
    seen, start = message_of(True, ids).embedded(ids)
    leaf = start.clone().requires_grad_()
    total = sum(g.square().sum() for g in seen(leaf).values())
    (gradient,) = torch.autograd.grad(total, leaf)
    assert bool(gradient.any())


def test_several_tables_are_put_side_by_side():
    torch.default_generator.manual_seed(0)
    model = Columns().double()
    ids = torch.tensor([[0, 5], [3, 2], [1, 1]])
    message = TokenGradient(model, cross_entropy, torch.tensor([0, 1, 2]))
    seen, start = message.embedded(ids)
    assert start.shape == (3, 3 + 2 + 1)
    assert message.tables(ids) == {"first.weight", "second.weight", "bias.weight"}
    torch.testing.assert_close(seen(start), message(ids))
    moments = measure(message, ids, "exact")
    assert all(bool((s > 0).all()) for s in moments.squared_sensitivities.values())


def test_random_ids_fit_every_table_and_read_no_value():
    message = TokenGradient(Columns(), cross_entropy, torch.zeros(1).long())
    like = torch.full((400, 2), 10**6)
    drawn = random_ids(message, like, generator())
    assert drawn[:, 0].unique().tolist() == [0, 1, 2, 3]
    assert drawn[:, 1].unique().tolist() == [0, 1, 2, 3, 4, 5]


def test_rows_are_pooled_and_nothing_is_lost():
    ids = sequences(2)
    message = message_of(False, ids)
    values = {name: value.square() for name, value in message(ids).items()}
    spread = over_rows(values, message, ids)
    torch.testing.assert_close(spread["embed.weight"].sum(), values["embed.weight"].sum())
    assert spread["head.weight"] is values["head.weight"]


def test_a_model_without_a_lookup_is_refused():
    message = TokenGradient(nn.Linear(2, 2), cross_entropy, torch.tensor([0]))
    with pytest.raises(ValueError, match="should accept inputs"):
        measure(message, torch.tensor([[1, 2]]))
    own = TokenGradient(OneHot(), cross_entropy, torch.tensor([0]))
    with pytest.raises(TypeError, match=r"should look up `inputs`.*OneHot"):
        measure(own, torch.tensor([[1, 0]]))


def test_numbers_are_refused():
    with pytest.raises(TypeError, match=r"ids of tokens.*float32"):
        message_of(False, sequences(2))(torch.zeros(2, 5))


class OneHot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.one_hot(ids, 2).flatten(1).float())

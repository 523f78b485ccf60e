"""Rounds: equal to centralised training without a defense, and robust against bad clients."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import Defense, GradientNoise, NoDefense, OptimalNoise
from gradveil.federated import (
    Client,
    FederatedRun,
    LocalSteps,
    NoReplyError,
    Server,
    evaluate,
    sample_clients,
)
from gradveil.shapes import ModelSource

from .small import assert_same, client, examples, model, run, server

pytestmark = pytest.mark.usefixtures("global_rng_watch")


def test_without_a_defense_it_is_centralised_training() -> None:
    """The same mini-batches, their union in one place, the same Adam: equal to 1e-6."""
    federated, central = run(clients=4), model()
    watched = [client(i) for i in range(4)]
    optimizer = torch.optim.Adam(central.parameters(), lr=0.01)
    for _ in range(20):
        chosen = [c.next_indices() for c in watched]
        for c in watched:
            c.reply(central, cross_entropy)
        inputs, targets = (
            torch.cat([getattr(c, part)[i] for c, i in zip(watched, chosen, strict=True)])
            for part in ("inputs", "targets")
        )
        optimizer.zero_grad()
        loss = cross_entropy(central(inputs), targets)
        loss.backward()
        optimizer.step()
        assert federated.step().loss == pytest.approx(loss.item(), abs=1e-6)
    for mine, theirs in zip(federated.server.model.parameters(), central.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


def test_fedavg_is_the_weighted_mean_of_local_sgd() -> None:
    local = LocalSteps(steps=3, lr=0.1)
    federated = FederatedRun(
        server("update"), [client(0, local=local), client(1, count=3, local=local)], cross_entropy
    )
    chosen = [c.next_indices() for c in federated.clients.values()]
    ends = []
    for member, indices in zip(federated.clients.values(), chosen, strict=True):
        moved = model()
        optimizer = torch.optim.SGD(moved.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            cross_entropy(moved(member.inputs[indices]), member.targets[indices]).backward()
            optimizer.step()
        ends.append(dict(moved.named_parameters()))
    federated.step()
    for name, parameter in federated.server.model.named_parameters():
        expected = (4 * ends[0][name] + 3 * ends[1][name]) / 7
        torch.testing.assert_close(parameter, expected)


@pytest.mark.parametrize("defense", [GradientNoise(0.1), OptimalNoise(0.1, source=ModelSource(3))])
def test_the_same_seed_gives_the_same_bytes(defense: Defense) -> None:
    runs = [run(defense) for _ in range(2)]
    for one in runs:
        one.run(5)
    assert_same(*[one.server.model.state_dict() for one in runs])
    assert runs[0].history.to_csv() == runs[1].history.to_csv()


def test_a_state_continues_with_identical_bytes() -> None:
    defense = OptimalNoise(0.1, source=ModelSource(3))
    whole, first, second = (run(defense, fraction=0.7) for _ in range(3))
    whole.run(7)
    first.run(4)
    second.load_state_dict(first.state_dict())
    second.run(7)
    assert_same(whole.server.model.state_dict(), second.server.model.state_dict())


def test_sampling_is_drawn_anew_for_each_round() -> None:
    drawn = [tuple(sample_clients(range(10), 0.3, seed=0, round=r)) for r in range(200)]
    assert {len(set(some)) for some in drawn} == {3}
    assert len(set(drawn)) > 50
    asked = [sum(i in some for some in drawn) for i in range(10)]
    assert min(asked) > 35
    assert max(asked) < 85
    assert sample_clients([5, 9], 0.01, seed=0, round=1) in ([5], [9])
    with pytest.raises(ValueError, match=r"Parameter `fraction` should be in \(0, 1\]"):
        sample_clients([0], 0.0, seed=0, round=1)


def test_only_those_who_are_asked_reply() -> None:
    one = run(clients=4, fraction=0.5)
    for _ in range(6):
        found = one.step()
        assert list(found.clients) == sample_clients(range(4), 0.5, 0, found.round)
        assert found.examples == sum([4, 4, 2][(s - 1) % 3] for s in _steps(one, found.clients))
    assert sum(_steps(one, range(4))) == 12


def _steps(one: FederatedRun, clients: object) -> list[int]:
    return [one.clients[i].state_dict()["step"] for i in clients]  # type: ignore[attr-defined]


def test_evaluation_now_and_then_and_at_the_end() -> None:
    held_out = examples(20, seed=9)
    one = run(held_out=held_out, evaluate_every=3)
    history = one.run(7)
    assert [r.round for r in history.rounds if r.accuracy is not None] == [3, 6, 7]
    outputs = one.server.model(held_out[0])
    last = history.rounds[-1]
    assert last.held_out_loss == pytest.approx(cross_entropy(outputs, held_out[1]).item())
    assert last.accuracy == (outputs.argmax(1) == held_out[1]).double().mean().item()
    assert history.accuracy == last.accuracy


def test_evaluation_is_in_eval_mode_and_leaves_the_mode() -> None:
    trained = nn.Sequential(nn.BatchNorm1d(6), model()).train()
    before = {n: t.clone() for n, t in trained.state_dict().items()}
    evaluate(trained, cross_entropy, *examples(300))
    assert_same(before, trained.state_dict())
    assert trained.training


def test_metrics_of_a_round() -> None:
    found = run(GradientNoise(0.5), clients=3).step()
    assert found.clients == (0, 1, 2)
    assert found.examples == 12
    assert found.bytes_sent == 3 * 4 * sum(p.numel() for p in model().parameters())
    assert found.utility_second == pytest.approx(-0.25 * found.utility_first)


def test_a_client_without_data_is_skipped_and_counted() -> None:
    one = FederatedRun(server(), [client(0), client(1, count=0)], cross_entropy)
    history = one.run(2)
    assert history.skipped == 2
    assert [r.clients for r in history.rounds] == [(0,), (0,)]
    assert "at least one example" in history.rounds[0].skipped[0].reason


def _nan_for_some(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets) / (targets < 3).all()


def test_a_client_whose_loss_is_nan_is_skipped_and_counted() -> None:
    inputs, targets = examples(8)
    bad = Client(1, inputs, targets + 7, NoDefense(), batch_size=4, seed=0)
    with torch.random.fork_rng(devices=[]):
        trained = nn.Linear(6, 10)
    one = FederatedRun(
        Server(trained, torch.optim.Adam(trained.parameters())), [client(0), bad], _nan_for_some
    )
    found = one.step()
    assert found.clients == (0,)
    assert [(s.client, "should be finite" in s.reason) for s in found.skipped] == [(1, True)]


class Drifting(NoDefense):
    """A user's defense with a memory: adds the mean of what it sent before."""

    def __init__(self) -> None:
        self._past: dict[str, Tensor] = {}
        self._calls = 0

    def respond(self, message, inputs, generator=None):  # type: ignore[no-untyped-def]
        found = super().respond(message, inputs, generator)
        sent = {n: v + self._past.get(n, 0.0) / (1 + self._calls) for n, v in found.sent.items()}
        self._past = {n: v + self._past.get(n, 0.0) for n, v in sent.items()}
        self._calls += 1
        return found._replace(sent=sent)

    def state_dict(self) -> dict[str, object]:
        return {"past": self._past, "calls": self._calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._past, self._calls = dict(state["past"]), state["calls"]


def test_a_defense_with_a_memory_of_its_own_survives_a_checkpoint(tmp_path: Path) -> None:
    whole, first, second = (run(Drifting(), fraction=0.7) for _ in range(3))
    whole.run(7)
    first.run(4, folder=tmp_path, checkpoint_every=4)
    second.resume(tmp_path)
    assert sum(c.state_dict()["defense"]["calls"] for c in second.clients.values()) > 0
    second.run(7)
    assert_same(whole.server.model.state_dict(), second.server.model.state_dict())


def test_a_state_is_not_loaded_into_a_defense_that_has_none() -> None:
    state = client(0, Drifting()).state_dict()
    with pytest.raises(ValueError, match=r"`state` should have the keys .*\['calls', 'past'\]"):
        client(0).load_state_dict(state)


class Renamed(NoDefense):
    """Sends names that the server does not know."""

    def respond(self, message, inputs, generator=None):  # type: ignore[no-untyped-def]
        found = super().respond(message, inputs, generator)
        return found._replace(sent={f"my {n}": v for n, v in found.sent.items()})


def test_a_refused_reply_is_skipped_and_counted() -> None:
    one = FederatedRun(server(), [client(0), client(1, Renamed())], cross_entropy)
    found = one.step()
    assert found.clients == (0,)
    assert "unknown names" in found.skipped[0].reason


def test_a_round_without_replies_ends_the_run_and_leaves_the_model() -> None:
    one = run()
    before = {n: t.clone() for n, t in one.server.model.state_dict().items()}
    one.loss_fn = lambda outputs, targets: outputs.sum() * float("nan")
    with pytest.raises(NoReplyError, match=r"Round 1 .*3 clients asked and all of them skipped"):
        one.step()
    assert_same(before, one.server.model.state_dict())
    assert one.rounds == []


def test_clients_need_identifiers_of_their_own() -> None:
    with pytest.raises(ValueError, match=r"identifier of its own. Found \[1, 1\]"):
        FederatedRun(server(), [client(1), client(1)], cross_entropy)
    with pytest.raises(ValueError, match="at least one client"):
        FederatedRun(server(), [], cross_entropy)

"""Benchmark of the time that a defense adds to a round of federated training."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gradveil._timing import time_ratios
from gradveil.data import Dataset
from gradveil.defenses import Cached, Defended, Defense, NoDefense, OptimalNoise
from gradveil.federated import Client, FederatedRun, Server, partition
from gradveil.messages import Message, values_of
from gradveil.models import build_model

from ._cases import Case, large_cases
from ._client_step import some_shape, step_contenders, step_ratios


@dataclass(frozen=True)
class FederatedRow:
    """One defense: its rounds over undefended rounds of the same clients and batches."""

    model: str
    clients: int
    batch: int
    defense: str
    time_ratio: float | None
    """A round over an undefended one; `None` where no rounds were played."""
    step_ratio: float
    """The step of one client, with all of its checks, over one `loss.backward()`."""


class Bare(NoDefense):
    """A defense that only sends the plain gradient: the least that a round can cost."""

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """The message's values."""
        values = values_of(message, inputs)
        return Defended(values, None, values)


def round_contenders(refresh_every: int = 10) -> dict[str, Defense]:
    """Everything on clients counts: gradient, sensitivities, plan, noise, averaging and Adam.

    A plan from the server takes the server's time, once for all clients, which is not counted here.
    """
    return {
        **step_contenders(),
        "auto": OptimalNoise(0.1, plan_from="private"),
        "auto, one level per layer": OptimalNoise(0.1, granularity="layer", plan_from="private"),
        f"auto, cached for {refresh_every} rounds": Cached(
            OptimalNoise(0.1, plan_from="private"), refresh_every
        ),
    }


def bench_federated(
    data: Dataset,
    defenses: dict[str, Defense],
    *,
    clients: int = 4,
    batch: int = 16,
    rounds: int = 10,
    trained: int = 60,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda _: None,
) -> list[FederatedRow]:
    """Rounds of the paper's protocol on its MNIST CNN, fresh and after `trained` rounds.

    Each timing is of `rounds` rounds from the same weights, so that a cached defense pays for its
    measurement once in them; undefended and defended ones take turns.
    """
    start = _run(data, Bare(), clients, batch)
    rows = []
    for state, count in (("fresh", 0), (f"after {trained} rounds", trained)):
        progress(f"training for {count} rounds")
        for _ in range(count):
            _play(start)
        progress(f"timing, {state}")
        jobs = {
            name: _job(_run(data, defense, clients, batch), start, rounds)
            for name, defense in defenses.items()
        }
        baseline = _job(_run(data, Bare(), clients, batch), start, rounds)
        case = Case(f"MNIST CNN, {state}", start.server.model, *data.batch(0, batch))
        steps = step_ratios(case, defenses, repeats, rounds)
        for name, ratio in time_ratios(baseline, jobs, repeats).items():
            rows.append(FederatedRow(case.name, clients, batch, name, ratio, steps[name]))
    return rows


def bench_large_clients(
    batch: int = 16,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
    cases: Iterable[Case] | None = None,
) -> list[FederatedRow]:
    """Steps of one client with a large model: isotropic noise, and noise from the server."""
    rows = []
    for case in large_cases(batch) if cases is None else cases:
        progress(f"timing, {case.name}")
        for name, ratio in step_ratios(case, step_contenders(), repeats, steps=3).items():
            rows.append(FederatedRow(case.name, 1, len(case.inputs), name, None, ratio))
    return rows


def _run(data: Dataset, defense: Defense, clients: int, batch: int) -> FederatedRun:
    model = build_model("simple-conv-net")
    members = [
        Client(i, data.inputs[part], data.targets[part], defense, batch_size=batch, seed=0)
        for i, part in enumerate(partition(data.targets, clients))
    ]
    server = Server(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    return FederatedRun(server, members, cross_entropy)


def _play(run: FederatedRun) -> None:
    """A round as a deployment has it: nothing is computed for metrics."""
    server, clients = run.server, run.clients.values()
    server.step([(c.identifier, c.reply(server.model, run.loss_fn)) for c in clients])


def _job(run: FederatedRun, start: FederatedRun, rounds: int) -> Callable[[], None]:
    weights = {n: t.clone() for n, t in start.server.model.state_dict().items()}

    shape = some_shape(run.server.model)

    def job() -> None:
        run.server.model.load_state_dict(weights)
        for client in run.clients.values():
            client.use(shape)
        for _ in range(rounds):
            _play(run)

    return job

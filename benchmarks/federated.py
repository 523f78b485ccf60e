"""Benchmark of the time that a defense adds to a client's step and to a round of training."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.nn.functional import cross_entropy

from gradveil._timing import time_ratios
from gradveil.data import Dataset
from gradveil.defenses import (
    Defended,
    Defense,
    GradientNoise,
    NoDefense,
    OptimalNoise,
)
from gradveil.federated import Client, FederatedRun, PackedShape, Server, partition
from gradveil.messages import Message, values_of
from gradveil.models import build_model
from gradveil.shapes import Shape

from .cases import Case, digits, large_cases, some_shape
from .tables import Out, report


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


def contenders() -> dict[str, Defense]:
    """Everything on clients counts: gradient, sensitivities, plan, noise, averaging and Adam.

    A plan from the server takes the server's time, once for all clients, which is not counted here.
    """
    return {
        "isotropic noise": GradientNoise(0.1),
        "from the server": OptimalNoise(0.1, source="server"),
        "auto": OptimalNoise(0.1, source="private"),
        "auto, one level per layer": OptimalNoise(0.1, granularity="layer", source="private"),
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
) -> list[FederatedRow]:
    """Rounds of the paper's protocol on its MNIST CNN, fresh and after `trained` rounds.

    Each timing is of `rounds` rounds from the same weights, so that a cached defense pays for its
    measurement once in them; undefended and defended ones take turns.
    """
    start = _run(data, Bare(), clients, batch)
    rows = []
    for state, count in (("fresh", 0), (f"after {trained} rounds", trained)):
        for _ in range(count):
            _play(start)
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
    batch: int = 16, repeats: int = 3, cases: Iterable[Case] | None = None
) -> list[FederatedRow]:
    """Steps of one client with a large model: isotropic noise, and noise from the server."""
    cheap = {name: contenders()[name] for name in ("isotropic noise", "from the server")}
    return [
        FederatedRow(case.name, 1, len(case.inputs), name, None, ratio)
        for case in (large_cases(batch) if cases is None else cases)
        for name, ratio in step_ratios(case, cheap, repeats, steps=3).items()
    ]


def step_ratios(
    case: Case, defenses: Mapping[str, Defense], repeats: int, steps: int
) -> dict[str, float]:
    """The time of a client's whole step over that of `loss.backward()`.

    All of the step counts: taking the batch, all checks, the message, the plan and the noise. For a
    server's plan the shape is unpacked and planned with at the first of each `steps` steps.
    """
    shape = PackedShape.of(some_shape(case.model))

    def plain() -> None:
        for _ in range(steps):
            case.plain_gradient()

    def job(defense: Defense) -> Callable[[], None]:
        size = len(case.inputs)
        client = Client(0, case.inputs, case.targets, defense, batch_size=size, seed=0)

        def replies() -> None:
            client.use(Shape(dict(shape.shape.factors)))  # a new one, which has no plan yet
            for _ in range(steps):
                client.reply(case.model, cross_entropy)

        return replies

    return time_ratios(plain, {name: job(defense) for name, defense in defenses.items()}, repeats)


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


def main(
    clients: Annotated[int, typer.Option(help="Clients in a round.", min=1)] = 4,
    batch: Annotated[int, typer.Option(help="Examples of each client.", min=1)] = 16,
    rounds: Annotated[int, typer.Option(help="In each timing.", min=1)] = 10,
    repeats: Annotated[int, typer.Option(help="Of each timing, in turns.", min=1)] = 5,
    trained: Annotated[int, typer.Option(help="Rounds before the second part.", min=0)] = 60,
    large: Annotated[bool, typer.Option(help="Add clients with up to 30 M weights.")] = False,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    out: Out = None,
) -> None:
    """A defended round over an undefended one, and a client's step over one plain gradient."""
    rows = bench_federated(
        digits(mnist, clients),
        contenders(),
        clients=clients,
        batch=batch,
        rounds=rounds,
        trained=trained,
        repeats=repeats,
    )
    report(rows + (bench_large_clients(batch, repeats) if large else []), "federated", out)


if __name__ == "__main__":
    typer.run(main)

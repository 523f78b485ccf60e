"""Benchmark of the time that a defense adds to a client's step."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import typer
from torch.nn.functional import cross_entropy

from gradveil._timing import time_ratios
from gradveil.data import Dataset, load_dataset
from gradveil.defenses import Defense, GradientNoise, OptimalNoise
from gradveil.federated import Client, PackedShape
from gradveil.models import build_model
from gradveil.shapes import Shape

from .cases import Case, large_cases, some_shape, train
from .tables import Out, report

CHEAP = ("isotropic noise", "from the server")
"""What large models are tried with."""


@dataclass(frozen=True)
class FederatedRow:
    """One defense at one client."""

    model: str
    batch: int
    defense: str
    step_ratio: float
    """The client's step, with all of its checks, over one `loss.backward()`."""


def contenders() -> dict[str, Defense]:
    """A plan from the server takes the server's time, once for all clients: it is not counted."""
    return {
        "isotropic noise": GradientNoise(0.1),
        "from the server": OptimalNoise(0.1, source="server"),
        "from the model": OptimalNoise(0.1),
        "from the batch": OptimalNoise(0.1, source="private"),
    }


def bench_federated(
    cases: Iterable[Case], defenses: Mapping[str, Defense], *, steps: int = 10, repeats: int = 5
) -> list[FederatedRow]:
    """A row for each case and defense; of large models only those that cost little."""
    return [
        FederatedRow(case.name, len(case.inputs), name, ratio)
        for case in cases
        for name, ratio in step_ratios(
            case,
            {n: d for n, d in defenses.items() if case.graded or n in CHEAP},
            repeats,
            steps if case.graded else 3,
        ).items()
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


def digit_cases(data: Dataset, batch: int, trained: int) -> list[Case]:
    """The paper's MNIST CNN, fresh and after some steps of training."""
    cases = []
    for state, steps in (("fresh", 0), (f"after {trained} steps", trained)):
        model = build_model("simple-conv-net")
        train(model, data, steps)
        cases.append(Case(f"MNIST CNN, {state}", model, *data.batch(0, batch)))
    return cases


def main(
    batch: Annotated[int, typer.Option(help="Examples of the client.", min=1)] = 16,
    steps: Annotated[int, typer.Option(help="In each timing.", min=1)] = 10,
    repeats: Annotated[int, typer.Option(help="Of each timing, in turns.", min=1)] = 5,
    trained: Annotated[int, typer.Option(help="Steps before the second part.", min=0)] = 60,
    large: Annotated[bool, typer.Option(help="Add clients with up to 30 M weights.")] = False,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    out: Out = None,
) -> None:
    """A client's step over one plain gradient."""
    cases = digit_cases(load_dataset(mnist), batch, trained)
    cases += large_cases(batch) if large else ()
    report(bench_federated(cases, contenders(), steps=steps, repeats=repeats), "federated", out)


if __name__ == "__main__":
    typer.run(main)

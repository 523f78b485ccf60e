"""One round of federated training."""

from collections.abc import Mapping, Sequence

from gradveil._checks import NonFiniteError
from gradveil.messages import LossFunction

from ._client import Client, NoDataError
from ._healthy import NoSignalError
from ._reply import Costs, Reply
from ._server import Server, admit
from ._storage import RoundMetrics, Skip


class NoReplyError(ValueError):
    """A round in which no client's reply could be used."""


def play_round(
    number: int, server: Server, clients: Sequence[Client], loss_fn: LossFunction
) -> RoundMetrics:
    """Ask these clients, average what they send, take the server's step.

    A client is skipped, with the reason in the result, if it has no data, if its loss or gradient
    is not finite or says nothing (`NoSignalError`), or if the server refuses its reply.

    Raises:
        NoReplyError: If no reply is left. The model stays as it was.
    """
    replies: list[tuple[int, Reply]] = []
    costs: dict[int, Costs] = {}
    skipped: list[Skip] = []
    for client in clients:
        try:
            reply, costs[client.identifier] = client.reply_with_costs(server.model, loss_fn)
        except (NoDataError, NonFiniteError, NoSignalError) as error:
            skipped.append(Skip(client.identifier, str(error)))
        else:
            replies.append((client.identifier, reply))
    admitted, refused = admit(replies, server.parameters)
    skipped += [Skip(identifier, reason) for identifier, reason in refused]
    if not admitted:
        raise NoReplyError(_nobody(number, skipped))
    server.step(admitted)
    return _metrics(number, dict(admitted), costs, skipped)


def _nobody(number: int, skipped: Sequence[Skip]) -> str:
    first = f" The first: {skipped[0].reason}" if skipped else ""
    return (
        f"Round {number} should have at least one usable reply. Found {len(skipped)} clients asked"
        f" and all of them skipped.{first}"
    )


def _metrics(
    number: int, replies: Mapping[int, Reply], costs: Mapping[int, Costs], skipped: list[Skip]
) -> RoundMetrics:
    examples = sum(reply.examples for reply in replies.values())
    return RoundMetrics(
        round=number,
        clients=tuple(sorted(replies)),
        skipped=tuple(skipped),
        examples=examples,
        bytes_sent=sum(reply.size for reply in replies.values()),
        loss=_loss(replies, costs),
        utility_first=_mean([costs[i].utility_first for i in replies]),
        utility_second=_mean([costs[i].utility_second for i in replies]),
        seconds_gradient=sum(costs[i].seconds_gradient for i in replies),
        seconds_defense=sum(costs[i].seconds_defense for i in replies),
    )


def _loss(replies: Mapping[int, Reply], costs: Mapping[int, Costs]) -> float | None:
    """The mean over examples; batches without examples have none."""
    known = [(costs[i].loss, reply.examples) for i, reply in replies.items()]
    summed = [(loss * count, count) for loss, count in known if loss is not None]
    total = sum(count for _, count in summed)
    return sum(part for part, _ in summed) / total if total else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

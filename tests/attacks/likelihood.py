"""One message under one set of values."""

from torch import Tensor

from gradveil.attacks._likelihood import Doubt, log_likelihoods


def log_likelihood(
    mechanism: object,
    values: dict[str, Tensor],
    sent: dict[str, Tensor],
    doubt: Doubt | None = None,
) -> Tensor:
    return log_likelihoods(mechanism, [values], [sent], doubt)[0, 0]

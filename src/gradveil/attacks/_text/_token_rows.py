"""The bag of tokens, read off the gradient of the embedding table."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._random import generator_or_fresh

from .._attack import Attack
from .._observation import Observation, check_observation
from .._reconstruction import Reconstruction
from ._token_evidence import (
    blank_ids,
    likely_tokens,
    noise_of,
    row_scores,
    table_of,
    targets_of,
    with_labels,
)


@dataclass(frozen=True)
class TokenRows(Attack):
    """Which tokens were used: the rows of the table's gradient that are not 0.

    Row v is Σ_p ∂L/∂e_p over the places p with token v: 0 for all others. So the set of tokens is
    exact without a defense; under noise, rows are tested by their norms (`row_scores`), with its
    levels if they are known. Order and numbers do not show: the tokens found are put into the
    batch one after the other, the clearest first, and start again where there are too few.

    Where the table is also the last layer (GPT-2), rows of tokens that were not used are those
    that nearly all rows are like. The loss is the share of places that repeat a token for want of
    others.

    Reference: Melis et al., "Exploiting Unintended Feature Leakage in Collaborative Learning", IEEE
    S&P 2019, section 4.1; Gupta et al., "Recovering Private Text in Federated Learning of Language
    Models", NeurIPS 2022.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
    >>> from gradveil.attacks import observe
    >>> from gradveil.models import TokenTransformer
    >>> _ = torch.manual_seed(0)
    >>> model = TokenTransformer(tokens=12, length=4, width=16, depth=1).eval()
    >>> private = torch.tensor([[3, 1, 4]]), torch.tensor([1])
    >>> seen = observe(model, cross_entropy, private, NoDefense(), num_classes=2)
    >>> sorted(TokenRows()(seen).inputs[0].tolist())
    [1, 3, 4]
    """

    knows_defense = True
    needs_defense = False

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; random are only the inputs at which labels are read off, if not granted."""
        check_observation(observation, tokens=True)
        observation = with_labels(observation, generator_or_fresh(generator))
        blank = blank_ids(observation)
        found = likely_tokens(token_scores(observation), blank.numel())
        places = torch.arange(blank.numel(), device=blank.device) % len(found)
        ids = found[places].reshape(blank.shape)
        missing = 1 - len(found) / blank.numel()
        return Reconstruction(ids, targets_of(observation, ids), missing)


def token_scores(observation: Observation) -> Tensor:
    """`row_scores` of the table; an error where it is not trained."""
    name, _ = table_of(observation)
    if name is None:
        raise ValueError(
            "Parameter `observation.model` should train its table of tokens. Found that its"
            " gradient was not sent. Use `SpanCheck`."
        )
    noise = noise_of(observation)
    return row_scores(observation.sent[name], None if noise is None else noise[name])

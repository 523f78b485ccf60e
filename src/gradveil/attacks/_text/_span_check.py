"""Text from the spans of a transformer's gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import (
    check_count,
    check_not_negative,
    check_not_negative_count,
    check_optional_callable,
)
from gradveil._random import generator_or_fresh
from gradveil.messages import TokenGradient

from .._attack import Attack, Progress
from .._observation import Observation, check_observation
from .._reconstruction import Reconstruction
from .._search import Watch
from ._assemble import Assembler
from ._linear_inputs import linear_inputs
from ._places import Places, find_places
from ._spans import Span, span_of
from ._token_evidence import (
    blank_ids,
    noise_of,
    table_of,
    targets_of,
    token_message,
    with_labels,
)
from ._token_search import TokenSearch


@dataclass(frozen=True)
class SpanCheck(Attack):
    """Tokens whose inputs of the first attention layer lie in the span of its gradient.

    For queries, keys and values u_n = W x_n, the gradient ∂L/∂W = Σ_n δ_n x_nᵀ has its rows in the
    span of the x_n; with fewer tokens in the batch than features, and independent δ_n, the span is
    exactly theirs. The input x of the first layer depends on one token v and its place p alone, so
    every (v, p) is checked by its distance to the span. That gives the tokens of each place. Later
    layers' inputs depend on whole sequences, and put the tokens together (`Assembler`). In the end
    the gradient of what was found is compared with what was sent, and single tokens are changed
    where that is more likely under the known mechanism (`TokenSearch`).

    Under noise, directions of the gradient that noise could have made are left out of the spans,
    the table's rows (`TokenRows`) choose the tokens, and the last search does the rest. A batch
    with as many tokens as features or more leaves only these.

    Reference: Petrov et al., "DAGER: Exact Gradient Inversion for Large Language Models", NeurIPS
    2024, arXiv:2405.15586. The use of all three maps, of every later layer and of the likelihood
    is ours.

    Args:
        width: How many tokens are tried in each place where spans do not decide.
        sweeps: Of the last search, over all places.
        time_budget: Seconds after which the best so far is returned.
        progress: Called with (step, steps, cost) between the parts of the attack.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
    >>> from gradveil.attacks import observe
    >>> from gradveil.models import TokenTransformer
    >>> _ = torch.manual_seed(0)
    >>> model = TokenTransformer(tokens=12, length=4, width=16, depth=1).eval()
    >>> private = torch.tensor([[3, 1, 4]]), torch.tensor([1])
    >>> seen = observe(model, cross_entropy, private, NoDefense(), num_classes=2)
    >>> SpanCheck(time_budget=5)(seen, torch.Generator().manual_seed(0)).inputs
    tensor([[3, 1, 4]])
    """

    knows_defense = True
    needs_defense = False

    width: int = 8
    sweeps: int = 3
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_count(self.width, "width")
        check_not_negative_count(self.sweeps, "sweeps")
        if self.time_budget is not None:
            check_not_negative(self.time_budget, "time_budget")
        check_optional_callable(self.progress, "progress", "Give a function, or None.")

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack one observation of tokens."""
        check_observation(observation, tokens=True)
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        observation = with_labels(observation, generator)
        message = token_message(observation, blank_ids(observation))
        spans = _spans(observation, message)
        places = find_places(observation, message, spans.get(0), self.width)
        size = observation.batch_size
        start = self._assembled(message, spans, places, size, generator, watch)
        search = TokenSearch(observation, start, generator, watch)
        self._tell(1, search.cost)
        search.improve(places, self.sweeps)
        self._tell(2, search.cost)
        targets = targets_of(observation, search.ids)
        return Reconstruction(search.ids, targets, search.cost, status=search.status)

    @property
    def work(self) -> float:
        """About how many gradients it takes, for sentences of ten tokens."""
        return 10.0 * self.width * self.sweeps

    @property
    def reports(self) -> float:
        """Twice."""
        return 2.0

    def _assembled(
        self,
        message: TokenGradient,
        spans: dict[int, Span],
        places: Places,
        size: int,
        generator: torch.Generator,
        watch: Watch,
    ) -> Tensor:
        later = {k: s for k, s in spans.items() if k > 0 and s.rank >= spans[0].rank}
        several = size > 1 and any(len(tokens) > 1 for tokens in places.tokens)
        if not later or not several or not any(places.decided):
            return places.start(size)
        return Assembler(message, later, places, size, generator, watch).sequences()

    def _tell(self, step: int, cost: float) -> None:
        if self.progress is not None:
            self.progress(step, 2, cost)


def _spans(observation: Observation, message: TokenGradient) -> dict[int, Span]:
    """Those that leave something out, by the number of the linear input; none without the first."""
    blank = blank_ids(observation)
    noise, table = noise_of(observation), table_of(observation)[0]
    found = {}
    for number, each in enumerate(linear_inputs(message, blank)):
        if all(name in observation.sent and name != table for name, _ in each.weights):
            span = span_of(each, observation.sent, blank.numel(), 0.0 if noise is None else noise)
            if span.says_something:
                found[number] = span
    return found if 0 in found else {}

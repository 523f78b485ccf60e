"""The default settings of an audit."""

from gradveil.attacks import (
    Adaptive,
    Attack,
    InvertingGradients,
    Peel,
    Regress,
    SpanCheck,
    TabLeak,
    TokenRows,
    Unpool,
)
from gradveil.data import Dataset

DEFENSES = (
    "no-defense",
    "gradient-noise",
    "optimal-noise",
    "dpsgd",
    "optimal-dpsgd",
    "gradient-pruning",
    "optimal-pruning",
    "gradient-pruning(noise=gradient-noise)",
    "optimal-pruning(noise=optimal-noise)",
)
"""Each optimal defense after its classical twin; their amounts are solved for."""

QUICK_DEFENSES = ("no-defense", "gradient-noise", "optimal-noise")

STEPS, QUICK_STEPS = 150, 100
"""Of the attacks: 150 let them show on MNIST what leaks, within minutes."""

STARTS = 1
"""From noise, of the attack that knows the defense: its usual three take twice as long."""

RATIO = 0.9
"""The share of entries that the reference of the pruning defenses cuts."""

CLAMPED = 0.01
"""The share of entries that noise with clamping clamps where no threshold is given."""

TRAINING_STEPS, TRAINING_SEEDS, CLIENTS, RATE = 5, 3, 4, 1e-3
"""Defended training: Adam with this rate on the mean of the clients' messages."""

POPULATION = 8
"""Batches over which the information of a bound is averaged."""

FULL_LIMIT = 2**30
"""Up to how many batches times input entries times message entries the full bound is computed."""

BOUND_PROBES = 2
"""Random probes of the full bound where the inputs are large: each is a linear system to solve."""

PRIOR_LIMIT = 4096
"""Up to how many entries of an example a Gaussian prior is fitted."""

RANGE_NOTE = (
    "The attacker was not told the range of the inputs, because it could only be taken from the"
    " audited examples themselves: give public examples or a normalisation."
)
PLAN_NOTE = (
    "Plans marked private are made from the private batch, and tell who was in it at any amount of"
    " noise. Their bounds count what the noise levels reveal. The other plans are made from public"
    " examples or from the model alone, and reveal nothing."
)


TABLE_STARTS = 4
"""Of the attack on a table with categories; its own 16 take four times as long."""


def default_attacks(steps: int, data: Dataset) -> list[Attack]:
    """The attack that does not know the defense, and the one that does.

    Peeling takes messages without noise apart, at little cost for all others. Neither attack ends
    with second-order steps, which cost as much again for messages that leak anyway. Tokens and
    tables with categories have attacks of their own.
    """
    if data.tokens:
        return [TokenRows(), SpanCheck()]
    if data.inputs.dim() == 4:
        unaware = InvertingGradients(
            steps, total_variation=1e-2, peel=Peel(), unpool=Unpool(), regress=Regress()
        )
        return [unaware, Adaptive(unaware, restarts=STARTS, finish=None)]
    unaware = InvertingGradients(steps, total_variation=0.0)
    if data.layout is not None:
        return [unaware, TabLeak(steps=steps, starts=TABLE_STARTS)]
    return [unaware, Adaptive(unaware, prior=None, restarts=STARTS, finish=None)]


def quick_attack(steps: int, data: Dataset) -> Attack:
    """One of them: the unaware one, or of those on text the one that finds the order, too."""
    usual = default_attacks(steps, data)
    return usual[-1] if data.tokens else usual[0]

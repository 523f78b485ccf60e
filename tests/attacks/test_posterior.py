"""The adaptive attack's search: which candidates are averaged, and what follows from the mean."""

import torch

from gradveil import GradientNoise
from gradveil.attacks import Adaptive, InvertingGradients, Observation
from gradveil.attacks._adaptive import PosteriorSearch
from gradveil.attacks._descent import Minimum, Watch, message_of
from gradveil.attacks._refine import Refined

from .tiny import conv_net, error, generator, observed, smooth_images

ATTACK = Adaptive(InvertingGradients(20), finish=None, restarts=2)
TRUTH = smooth_images(2, 1, (6, 6))


def seen(seed: int = 0) -> Observation:
    truth = smooth_images(2, 1, (6, 6), seed)
    return observed(conv_net(1, (6, 6)), truth, [0, 1], GradientNoise(1e-3), mechanism="known")


def search_of(*observations: Observation) -> PosteriorSearch:
    return PosteriorSearch(ATTACK, list(observations), generator(), Watch(None))


def candidates(*offsets: float) -> torch.Tensor:
    """The truth, each time with other noise of this size."""
    drawn = torch.randn(len(offsets), *TRUTH.shape, generator=generator(3))
    sizes = torch.tensor(offsets).view(-1, 1, 1, 1, 1)
    return (TRUTH + sizes * drawn).clamp(-1, 1)


def opposite(*more: float) -> torch.Tensor:
    """Two that miss the truth by as much on either side, and others with noise of these sizes."""
    shift, noise = torch.randn(2, *TRUTH.shape, generator=generator(4))
    pair = torch.stack([TRUTH + 0.1 * shift + side * noise for side in (0.05, -0.05)])
    return torch.cat([pair, candidates(*more)]) if more else pair


def agreed(search: PosteriorSearch, starts: torch.Tensor) -> Refined:
    observation = search.observations[0]
    channel = search._plan(observation, starts[0])
    costs = search._costs([channel] * len(search.observations), starts[None])[0]
    best = Refined(starts[costs.argmin()], float(costs.min()))
    return search._agreed(observation, channel, Minimum(starts, costs), best, starts[0])


def test_candidates_that_explain_much_less_do_not_count(monkeypatch):
    means = []
    monkeypatch.setattr(
        PosteriorSearch, "_from_mean", lambda _, o, c, mean: means.append(mean) or Refined(mean, 0)
    )
    good = opposite(3.0)
    agreed(search_of(seen()), good)
    assert error(means[0], good[:2].mean(0)) < 1e-6


def test_a_candidate_that_is_far_ahead_stays_as_it_is():
    """A closed form's guess used to be averaged with what a search from noise had found."""
    starts = candidates(0.05, 0.3, 0.3)
    assert torch.equal(agreed(search_of(seen()), starts).inputs, starts[0])


def test_the_descent_from_the_mean_explains_more_than_the_mean():
    search, starts = search_of(seen()), opposite()
    observation = search.observations[0]
    labels, message = observation.labels, message_of(observation)
    channel = search._plan(observation, starts[0])
    found, mean = agreed(search, starts), starts.mean(0)
    left = [
        channel.unexplained(search._final(channel), message(inputs, labels))
        for inputs in (found.inputs, mean)
    ]
    assert left[0] < left[1]
    assert error(found.inputs, TRUTH) < min(error(start, TRUTH) for start in starts)


def test_several_observations_end_as_each_would_alone():
    search = search_of(seen(0), seen(1))
    channels = [search._plan(o, TRUTH) for o in search.observations]
    mean = candidates(0.3)[0]
    together = [
        search._from_mean(o, c, mean) for o, c in zip(search.observations, channels, strict=True)
    ]
    alone = search_of(search.observations[1])._from_mean(search.observations[1], channels[1], mean)
    assert torch.equal(together[1].inputs, alone.inputs)
    assert together[1].cost == alone.cost

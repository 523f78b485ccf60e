"""The adaptive attack's search: which candidates are averaged, and what follows from the mean."""

import torch

from gradveil import GradientNoise
from gradveil.attacks import Adaptive, InvertingGradients, Observation
from gradveil.attacks._adaptive import _Posterior
from gradveil.attacks._descent import Minimum, Point, Watch
from gradveil.attacks._targets import Run

from .tiny import conv_net, error, generator, observed, smooth_images

ATTACK = Adaptive(InvertingGradients(20), finish=None, restarts=2)
TRUTH = smooth_images(2, 1, (6, 6))


def seen(seed: int = 0) -> Observation:
    truth = smooth_images(2, 1, (6, 6), seed)
    return observed(conv_net(1, (6, 6)), truth, [0, 1], GradientNoise(1e-3), mechanism="known")


def posterior_at(estimate: torch.Tensor) -> _Posterior:
    observation = seen()
    run = Run(observation, observation.labels, generator(), Watch(None))
    return _Posterior.at(estimate, ATTACK, run)


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


def agreed(posterior: _Posterior, starts: torch.Tensor) -> Point:
    costs = posterior.costs(starts)
    best = Point(starts[costs.argmin()], float(costs.min()))
    return posterior.agreed(Minimum(starts, costs), best, starts[0])


def test_candidates_that_explain_much_less_do_not_count(monkeypatch):
    begun, good, descend = [], opposite(3.0), _Posterior.descend

    def noted(self, start, *rest):
        begun.append(start[0])
        return descend(self, start, *rest)

    monkeypatch.setattr(_Posterior, "descend", noted)
    agreed(posterior_at(good[0]), good)
    assert error(begun[0], good[:2].mean(0)) < 1e-6


def test_a_candidate_that_is_far_ahead_stays_as_it_is():
    """A closed form's guess used to be averaged with what a search from noise had found."""
    starts = candidates(0.05, 0.3, 0.3)
    assert torch.equal(agreed(posterior_at(starts[0]), starts).inputs, starts[0])


def test_the_descent_from_the_mean_explains_more_than_the_mean():
    starts = opposite()
    posterior = posterior_at(starts[0])
    found = agreed(posterior, starts)
    assert posterior.unexplained(found.inputs) < posterior.unexplained(starts.mean(0))
    assert error(found.inputs, TRUTH) < min(error(start, TRUTH) for start in starts)

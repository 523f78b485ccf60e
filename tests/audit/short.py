"""A small model and data on which an audit over strengths takes a second or two."""

import torch
from torch.nn.functional import cross_entropy

from gradveil.audit import Federation, Releases, Settings, Subject, run
from gradveil.models import build_model

SHORT = Federation(rounds=6, clients=2, lr=0.05)


def draw(count, seed):
    """Three classes of eight numbers, far apart."""
    own = torch.Generator().manual_seed(seed)
    centres = torch.rand(3, 8, generator=torch.Generator().manual_seed(9))
    labels = torch.arange(count) % 3
    return (centres[labels] + 0.15 * torch.randn(count, 8, generator=own)).clamp(0, 1), labels


def model():
    torch.manual_seed(0)
    return build_model("mlp", sizes=[8, 6, 3])


PRIVATE, PUBLIC = draw(2, 1), draw(120, 2)


def small(goals=(), defenses=("gradient-noise",), network=None, strengths=3, rounds=100, **given):
    """An audit over strengths; `given` are options of `run`."""
    subject = Subject(model() if network is None else network, cross_entropy, PRIVATE, PUBLIC)
    settings = Settings(
        list(defenses), goals=goals, steps=6, strengths=strengths, releases=Releases(rounds)
    )
    return run(subject, SHORT, settings, **given)

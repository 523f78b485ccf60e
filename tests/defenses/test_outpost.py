import pytest
import torch

from gradveil import Moments
from gradveil.defenses import Outpost
from gradveil.mechanisms import Mechanism

from .small_rivals import gradient, images, seeded


def planned(**options: float) -> tuple[Mechanism, dict[str, torch.Tensor]]:
    defense = Outpost(**options)
    values, mechanism, _ = defense.respond(gradient(), images(), seeded())
    return mechanism, values


def test_noise_follows_the_spread_of_each_tensors_weights() -> None:
    mechanism, values = planned(scale=2.0, noisy=1.0, ratio=0.0)
    assert isinstance(mechanism.std, dict)
    assert isinstance(mechanism.keep, dict)
    for name, weights in gradient().parameters.items():
        level = 2.0 * min(float(weights.var()), 1.0)
        torch.testing.assert_close(mechanism.std[name], torch.full_like(values[name], level))
        assert bool((mechanism.keep[name] == 1).all())


def test_the_largest_entries_of_all_have_noise_and_the_smallest_of_each_tensor_are_pruned() -> None:
    mechanism, values = planned(noisy=0.25, ratio=0.5)
    assert isinstance(mechanism.std, dict)
    assert isinstance(mechanism.keep, dict)
    sizes = torch.cat([v.abs().flatten() for v in values.values()])
    noisy = torch.cat([s.flatten() for s in mechanism.std.values()]) > 0
    assert int(noisy.sum()) == round(0.25 * len(sizes))
    assert float(sizes[noisy].min()) >= float(sizes[~noisy].max())
    for name, value in values.items():
        kept = mechanism.keep[name] == 1
        assert int(kept.sum()) == value.numel() - round(0.5 * value.numel())
        assert float(value[kept].abs().min()) >= float(value[~kept].abs().max())


def test_it_defends_less_and_less_often() -> None:
    """At step t with the probability 1 / (1 + t / 2)."""
    message, plain = gradient(), gradient()(images())

    def share(step: int, count: int) -> float:
        defended = 0
        for seed in range(count):
            defense = Outpost(decay=0.5)
            defense.load_state_dict({"step": step} if step else {})
            sent = defense(message, images(), seeded(seed))
            defended += not torch.equal(sent["3.weight"], plain["3.weight"])
        return defended / count

    assert share(0, 20) == 1
    assert 0.35 < share(2, 100) < 0.65
    assert share(200, 50) < 0.1


def test_its_state_is_the_step() -> None:
    defense = Outpost()
    assert defense.state_dict() == {}
    defense(gradient(), images(), seeded())
    assert defense.state_dict() == {"step": 1}
    assert defense.without_memory().state_dict() == {}
    other = Outpost()
    other.load_state_dict({"step": 4})
    assert other.state_dict() == {"step": 4}
    other.reset()
    assert other.state_dict() == {}
    with pytest.raises(ValueError, match=r"the keys \['step'\], or none"):
        other.load_state_dict({"steps": 4})


def test_its_plan_is_private_and_needs_the_weights() -> None:
    assert Outpost().about.private
    with pytest.raises(TypeError, match="looks at the message itself"):
        Outpost().plan(Moments({"w": torch.ones(2)}, None, 1))


@pytest.mark.parametrize("name", ["scale", "noisy", "ratio", "decay"])
def test_bad_options(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        Outpost(**{name: -0.1})

import pytest
import torch

from gradveil.attacks._descent import Descent, Watch, clamp, minimise

from .tiny import generator


def bowl(candidate, progress, centre):
    return (candidate - centre).square().sum()


def test_each_candidate_finds_its_own_minimum():
    centres = torch.randn(3, 2, 4, generator=generator())
    found = minimise(bowl, torch.zeros(3, 2, 4), Descent(200, 0.1), data=(centres,))
    torch.testing.assert_close(found.inputs, centres, atol=2e-3, rtol=0)
    assert found.status == "finished"


@pytest.mark.parametrize("method", ["signed-adam", "adam"])
@pytest.mark.parametrize("decay", ["steps", "cosine"])
def test_every_method_descends(method, decay):
    centres = torch.ones(1, 3)
    descent = Descent(100, 0.1, method, decay)
    assert float(minimise(bowl, torch.zeros(1, 3), descent, data=(centres,)).costs) < 1e-2


def test_batched_is_the_same_as_one_by_one():
    centres = torch.randn(4, 3, generator=generator(), dtype=torch.float64)
    start = torch.zeros(4, 3, dtype=torch.float64)
    together = minimise(bowl, start, Descent(20), data=(centres,)).inputs
    alone = [minimise(bowl, start[i : i + 1], Descent(20), data=(centres[i : i + 1],)).inputs
             for i in range(4)]  # fmt: skip
    torch.testing.assert_close(together, torch.cat(alone))


def test_the_range_is_kept():
    low, high = torch.tensor(-0.5), torch.tensor(0.25)
    far = torch.tensor([[3.0, -3.0]])
    found = minimise(bowl, torch.zeros(1, 2), Descent(100), data=(far,), low=low, high=high)
    torch.testing.assert_close(found.inputs, torch.tensor([[0.25, -0.5]]))
    assert clamp(far, None, None) is far


def test_the_best_iterate_wins_and_not_the_last():
    target = torch.tensor([[0.3]])
    diverging = Descent(1, lr=1.3, decay="none")
    found = minimise(bowl, torch.zeros(1, 1), diverging, data=(target,))
    assert float(found.costs) == pytest.approx(0.09)  # the start
    costs: list[float] = []
    minimise(
        bowl, torch.ones(1, 1), Descent(200), data=(target,),
        progress=lambda *told: costs.append(told[2]),
    )  # fmt: skip
    assert costs == sorted(costs, reverse=True)
    assert len(costs) == 201


def test_an_own_yardstick_picks_the_iterate():
    def cost(candidate, progress):
        return candidate.square().sum(), (candidate - 0.5).square().sum()

    found = minimise(cost, torch.ones(1, 1), Descent(200, lr=0.01, decay="none"))
    assert float(found.inputs) == pytest.approx(0.5, abs=0.01)


def test_a_time_budget_returns_the_start_at_least():
    found = minimise(bowl, torch.ones(1, 2), Descent(time_budget=0.0), data=(torch.zeros(1, 2),))
    assert found.status == "time budget"
    assert torch.isfinite(found.costs).all()
    assert Watch(None).left() is None


def test_ctrl_c_returns_the_best_so_far():
    calls = []

    def interrupting(step, steps, cost):
        calls.append((step, steps))
        if step == 5:
            raise KeyboardInterrupt

    found = minimise(
        bowl, torch.ones(2, 2), Descent(50), data=(torch.zeros(2, 2),), progress=interrupting
    )
    assert found.status == "interrupted"
    assert calls[-1] == (5, 50)
    assert bool((found.costs < 2).all())


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    minimise(bowl, torch.ones(2, 2), Descent(3), data=(torch.zeros(2, 2),))
    assert torch.equal(before, torch.get_rng_state())

"""Sensitivities measured now and then, averaged; values always fresh."""

import pytest
import torch
from torch import Tensor

from gradveil import (
    Cached,
    Exact,
    GradientMessage,
    GradientNoise,
    Moments,
    NonFiniteError,
    OptimalDPSGD,
    OptimalNoise,
    measure,
)
from gradveil._tensors import total
from gradveil.defenses._cached import OWN_PART
from gradveil.messages import Message
from gradveil.models import build_model
from gradveil.sensitivity import Auto, Measurement

from .cases import Tensors, batch, message, powers


class Spy:
    """The exact estimator, and at which inputs it was asked."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        self.seen.append(inputs)
        return Exact()(message, inputs, generator)


def other(inputs: Tensor) -> Tensors:
    """A message of another structure."""
    return {"weight": inputs.sum(0), "scalar": inputs.sum()}


def exact(seed: int) -> Moments:
    return measure(message, batch(seed), "exact")


def observed(defense: Cached, seed: int) -> Moments:
    return defense.observe(message, batch(seed), torch.Generator().manual_seed(0))[1]


@pytest.mark.parametrize("refresh_every", [1, 2, 3, 5])
def test_it_measures_only_every_so_many_calls(refresh_every: int) -> None:
    spy = Spy()
    defense = Cached(OptimalNoise(0.1, estimator=spy, plan="private"), refresh_every=refresh_every)
    for seed in range(7):
        defense(message, batch(seed))
    asked = [seed for seed in range(7) if seed % refresh_every == 0]
    assert len(spy.seen) == len(asked)
    assert all(torch.equal(x, batch(s)) for x, s in zip(spy.seen, asked, strict=True))


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 1.0])
def test_running_mean(decay: float) -> None:
    """After refreshes 0 … k the mean weighs refresh j by decay^(k-j)."""
    defense = Cached(
        OptimalNoise(0.1, estimator=Exact(), plan="private"), refresh_every=2, decay=decay
    )
    for step in range(7):
        observed(defense, step)
        found = defense.state_dict()["squared_sensitivities"]
        refreshes = [seed for seed in range(step + 1) if seed % 2 == 0]
        weights = [decay ** (len(refreshes) - 1 - j) for j in range(len(refreshes))]
        for name, mean in found.items():
            terms = [
                w * exact(s).known_squared_sensitivities[name]
                for w, s in zip(weights, refreshes, strict=True)
            ]
            torch.testing.assert_close(mean, sum(terms) / sum(weights))


def test_values_are_fresh() -> None:
    defense = Cached(OptimalNoise(0.1, estimator=Exact(), plan="private"), refresh_every=10)
    for seed in range(4):
        values, moments = defense.observe(message, batch(seed), torch.Generator())
        for name, value in message(batch(seed)).items():
            torch.testing.assert_close(values[name], value)
            torch.testing.assert_close(moments.squared_values[name], value.square())


def test_a_step_that_measures_uses_what_it_measured() -> None:
    defense = Cached(
        OptimalNoise(0.1, estimator=Exact(), plan="private"), refresh_every=2, decay=0.9
    )
    for seed in range(5):
        found = observed(defense, seed)
        if seed % 2 == 0:
            for name, squares in exact(seed).known_squared_sensitivities.items():
                assert torch.equal(found.known_squared_sensitivities[name], squares)


def test_plan_is_that_of_the_mean_and_a_part_that_follows_the_fresh_values() -> None:
    inner = OptimalDPSGD(0.1, clip=1.0, estimator=Exact(), plan="private")
    defense = Cached(inner, refresh_every=10)
    defense(message, batch(0))
    found = defense.plan(observed(defense, 1))
    past, squares = exact(0).known_squared_sensitivities, exact(1).squared_values
    level = sum(float(p.sum()) for p in past.values()) / sum(
        float(g2.sum()) for g2 in squares.values()
    )
    own = {name: p + OWN_PART * level * squares[name] for name, p in past.items()}
    mixed = Moments(squares, own, input_size=6)
    torch.testing.assert_close(powers(found), powers(inner.plan(mixed)))  # type: ignore[arg-type]


class TestPartOfABatch:
    """A refresh after the first measures a share of its examples and plans with the mean."""

    def _observed(self, defense: Cached, seed: int) -> Moments:
        inputs, gradient = self._case(seed)
        return defense.observe(gradient, inputs, torch.Generator().manual_seed(0))[1]

    def _case(self, seed: int, examples: int = 8) -> tuple[Tensor, GradientMessage]:
        generator = torch.Generator().manual_seed(seed)
        model = build_model("mlp", sizes=[6, 5, 3])
        targets = torch.randint(3, (examples,), generator=generator)
        inputs = torch.randn(examples, 6, generator=generator)
        return inputs, GradientMessage(model, torch.nn.functional.cross_entropy, targets)

    def test_the_first_measures_everything(self) -> None:
        inputs, gradient = self._case(0)
        found = self._observed(Cached(OptimalNoise(0.1, plan="private")), 0)
        whole = measure(gradient, inputs, generator=torch.Generator().manual_seed(0))
        for name, squares in whole.known_squared_sensitivities.items():
            assert torch.equal(found.known_squared_sensitivities[name], squares)

    def test_later_ones_measure_the_share_and_use_the_mean(self) -> None:
        defense = Cached(OptimalNoise(0.1, plan="private"), refresh_every=1, decay=1.0)
        self._observed(defense, 0)
        first = defense.state_dict()["squared_sensitivities"]
        found = self._observed(defense, 1)
        inputs, gradient = self._case(1)
        generator = torch.Generator().manual_seed(0)
        part = measure(
            gradient, inputs, Auto(examples=2), generator=generator
        ).known_squared_sensitivities
        mean = {name: (first[name] + part[name]) / 2 for name in first}
        level = total(mean.values()) / total(found.squared_values.values())
        for name, squares in found.squared_values.items():
            expected = mean[name] + OWN_PART * level * squares
            torch.testing.assert_close(found.known_squared_sensitivities[name], expected.float())

    @pytest.mark.parametrize(
        "defense",
        [
            Cached(OptimalNoise(0.1, plan="private"), refresh_every=1, share=1.0),
            Cached(OptimalNoise(0.1, estimator=Exact(), plan="private"), refresh_every=1),
        ],
        ids=["share of 1", "another estimator"],
    )
    def test_all_is_measured_where_asked_for(self, defense: Cached) -> None:
        self._observed(defense, 0)
        inputs, gradient = self._case(1)
        generator = torch.Generator().manual_seed(0)
        whole = measure(gradient, inputs, defense.defense.estimator, generator=generator)
        found = self._observed(defense, 1)
        for name, squares in whole.known_squared_sensitivities.items():
            assert torch.equal(found.known_squared_sensitivities[name], squares)


def test_refreshing_always_without_memory_is_the_defense_itself() -> None:
    inner = OptimalNoise(0.1, estimator=Exact(), plan="private")
    defense = Cached(inner, refresh_every=1, decay=0.0)
    for seed in range(3):
        generators = [torch.Generator().manual_seed(seed) for _ in range(2)]
        cached, direct = (
            d(message, batch(seed), g) for d, g in zip((defense, inner), generators, strict=True)
        )
        assert all(torch.equal(cached[name], direct[name]) for name in direct)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_state_dict_continues_with_identical_bytes(steps: int, tmp_path: object) -> None:
    def fresh() -> Cached:
        return Cached(
            OptimalNoise(0.1, estimator=Exact(), plan="private"), refresh_every=3, decay=0.7
        )

    first, second = fresh(), fresh()
    for seed in range(steps):
        first(message, batch(seed))
    path = f"{tmp_path}/state.pt"
    torch.save(first.state_dict(), path)
    second.load_state_dict(torch.load(path, weights_only=True))
    for seed in range(steps, steps + 5):
        sent = [d(message, batch(seed), torch.Generator().manual_seed(9)) for d in (first, second)]
        assert all(torch.equal(sent[0][name], sent[1][name]) for name in sent[0])


def test_a_loaded_state_moves_to_where_the_values_are() -> None:
    first, second = (Cached(OptimalNoise(0.1, plan="private"), refresh_every=3) for _ in range(2))
    first(message, batch(0))
    state = first.state_dict()
    narrow = {
        key: {n: t.float() for n, t in value.items()} if isinstance(value, dict) else value
        for key, value in state.items()
    }
    second.load_state_dict(narrow)
    found, expected = observed(second, 1), observed(first, 1)
    for name, square in expected.known_squared_sensitivities.items():
        assert found.known_squared_sensitivities[name].dtype == square.dtype
        torch.testing.assert_close(
            found.known_squared_sensitivities[name], square, rtol=1e-5, atol=0
        )


def test_a_state_is_a_snapshot() -> None:
    defense = Cached(OptimalNoise(0.1, estimator=Exact(), plan="private"), refresh_every=1)
    defense(message, batch(0))
    state = defense.state_dict()
    before = {n: t.clone() for n, t in state["squared_sensitivities"].items()}
    defense(message, batch(1))
    assert all(torch.equal(state["squared_sensitivities"][n], t) for n, t in before.items())


def test_a_state_of_another_shape_is_refused() -> None:
    defense = Cached(OptimalNoise(0.1, plan="private"))
    with pytest.raises(ValueError, match=r"Parameter `state` should have the keys.*\['step'\]"):
        defense.load_state_dict({"step": 1})


@pytest.mark.parametrize("refresh_every", [1, 10], ids=["at a refresh", "between refreshes"])
def test_another_message_is_refused_until_reset(refresh_every: int) -> None:
    defense = Cached(
        OptimalNoise(0.1, estimator=Exact(), plan="private"), refresh_every=refresh_every
    )
    defense(message, batch(0))
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"`message\(inputs\)` should have the names of `cached.*`reset\(\)`"
        ):
            defense(other, batch(0))
    defense.reset()
    assert defense(other, batch(0)).keys() == {"weight", "scalar"}


def test_reset_forgets() -> None:
    defense = Cached(OptimalNoise(0.1, estimator=Exact(), plan="private"), refresh_every=10)
    defense(message, batch(0))
    defense.reset()
    found = observed(defense, 1).known_squared_sensitivities
    assert all(
        torch.equal(found[name], s) for name, s in exact(1).known_squared_sensitivities.items()
    )


def test_a_failed_call_does_not_count() -> None:
    spy = Spy()
    defense = Cached(OptimalNoise(0.1, estimator=spy, plan="private"), refresh_every=2)
    with pytest.raises(NonFiniteError):
        defense(message, torch.full((2, 3), float("nan")).double())
    for seed in range(4):
        defense(message, batch(seed))
    assert len(spy.seen) == 2


def test_a_defense_without_sensitivities_may_be_wrapped() -> None:
    sent = Cached(GradientNoise(0.0), refresh_every=2)
    for seed in range(3):
        found = sent(message, batch(seed))
        assert all(torch.equal(found[n], v) for n, v in message(batch(seed)).items())


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_bad_refresh(value: object) -> None:
    with pytest.raises(ValueError, match=r"Parameter `refresh_every` should be an integer.*Found"):
        Cached(OptimalNoise(0.1, plan="private"), refresh_every=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_bad_decay(value: float) -> None:
    with pytest.raises(ValueError, match=rf"Parameter `decay` should be in \[0, 1\].*{value}"):
        Cached(OptimalNoise(0.1, plan="private"), decay=value)


def test_repr_says_what_it_is() -> None:
    text = repr(Cached(OptimalNoise(0.1, plan="private"), refresh_every=4, decay=0.5, share=1.0))
    assert text.startswith("Cached(OptimalNoise(scale=0.1")
    assert text.endswith("refresh_every=4, decay=0.5, share=1.0)")


def test_a_gradient_of_zeros_is_planned_like_any_other() -> None:
    defense = Cached(OptimalNoise(0.1, estimator=Exact(), plan="private"), refresh_every=5)
    defense(lambda x: {"w": 1e3 * x.sum(0)}, batch(0))
    sent = defense(lambda x: {"w": torch.zeros_like(x.sum(0))}, batch(1))
    assert torch.isfinite(sent["w"]).all()
    assert sent["w"].any()


def test_nothing_of_the_values_is_kept() -> None:
    defense = Cached(OptimalNoise(0.1, estimator=Exact(), plan="private"))
    defense(message, batch(0))
    assert defense.state_dict().keys() == {"step", "count", "squared_sensitivities"}

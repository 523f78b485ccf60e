"""One defended step for everybody: what it holds, who may change it, what it remembers."""

from typing import Any

import pytest
import torch

from gradveil import (
    Defended,
    Defense,
    GradientNoise,
    NoDefense,
    OptimalNoise,
    OptimalPruning,
)
from tests.zoo import named


class Halved(Defense):
    """Sends half of the message: a response of its own, without a plan."""

    def respond(self, message: Any, inputs: Any, generator: Any = None) -> Defended:
        values = message(inputs)
        return Defended(values, None, {name: value / 2 for name, value in values.items()})


class Counting(NoDefense):
    """Remembers how often it was asked, but has no `reset`."""

    def state_dict(self) -> dict[str, Any]:
        return {"calls": 3}


@pytest.mark.parametrize("defense", [OptimalNoise(0.1), OptimalPruning(0.5), NoDefense()])
def test_a_response_holds_the_values_their_mechanism_and_what_it_made_of_them(
    defense: Defense,
) -> None:
    case = named("mlp")
    generator = torch.Generator().manual_seed(1)
    values, mechanism, sent = defense.respond(case.message(), case.inputs(), generator)
    again = torch.Generator().manual_seed(1)
    expected_values, moments = defense.observe(case.message(), case.inputs(), again)
    given = defense.given(moments, case.message(), case.inputs(), again)
    expected = defense.mechanism(given.shape, given.moments).apply(expected_values, again)
    assert mechanism is not None
    assert values.keys() == sent.keys()
    for name, value in values.items():
        assert torch.equal(value, expected_values[name])
        assert torch.equal(sent[name], expected[name])


def test_a_call_returns_what_the_response_sends() -> None:
    case = named("mlp")
    for defense in (GradientNoise(0.1), Halved()):
        sent, expected = (
            call(case.message(), case.inputs(), torch.Generator().manual_seed(1))
            for call in (defense, lambda *args, one=defense: one.respond(*args).sent)
        )
        assert all(torch.equal(value, expected[name]) for name, value in sent.items())


@pytest.mark.parametrize("base", [Defense, OptimalNoise])
def test_a_call_of_its_own_is_refused_where_the_class_is_defined(base: type) -> None:
    with pytest.raises(TypeError, match=r"no `__call__` of its own.*Found one in Mine. Override"):
        type("Mine", (base,), {"__call__": lambda self, message, inputs: {}})


def test_a_call_that_is_mixed_in_is_refused_too() -> None:
    class Calling:
        def __call__(self, message: Any, inputs: Any, generator: Any = None) -> Any:
            return {}

    with pytest.raises(TypeError, match="no `__call__` of its own"):
        type("Mixed", (Calling, NoDefense), {})


def test_a_defense_without_a_mechanism_says_so() -> None:
    class Empty(Defense):
        """Neither makes a mechanism nor responds."""

    case = named("mlp")
    with pytest.raises(TypeError, match=r"should have a method `mechanism`.*Found none in Empty"):
        Empty()(case.message(), case.inputs())


def test_a_defense_remembers_nothing_unless_it_says_so() -> None:
    defense = OptimalNoise(0.1, source="private")
    assert defense.state_dict() == {}
    defense.load_state_dict({})
    defense.reset()
    assert defense.without_memory() == defense
    with pytest.raises(ValueError, match=r"`state` should have the keys.*\['step'\]"):
        defense.load_state_dict({"step": 1})


def test_a_state_without_a_reset_is_never_handed_out() -> None:
    with pytest.raises(TypeError, match=r"method `reset`. Found none in Counting.*\['calls'\]"):
        Counting().without_memory()

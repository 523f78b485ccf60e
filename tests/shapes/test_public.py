"""Plans from public examples: their gain, their amounts, and examples of another kind."""

import functools

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, OptimalNoise, measure
from gradveil._tensors import total
from gradveil.mechanisms import Mechanism
from gradveil.shapes import Needs, Public, Shape, gather, model_given, trust_in
from gradveil.shapes._fit import moments_for, pool
from gradveil.shapes._shape import Request
from gradveil.shapes._sources import check_outputs, freshness

from .cases import SIZE, a_message, a_model, clouds, exact, generator, mean_gain, others

KINDS = ["noise", "uniform", "other labels", "other data"]


def planned(model, examples, **options):
    inputs, targets = clouds(SIZE, 4000)
    needs, message = Needs(**options), a_message(model, targets)
    asked = Request(needs, message.parameters, message, inputs, generator())
    return Public(examples)._made(asked)


@pytest.mark.parametrize("steps", [0, 60])
@pytest.mark.parametrize("batches", [2, 8])
def test_public_examples_of_the_same_kind_never_lose(steps, batches):
    model = a_model(steps)
    gains = [mean_gain(steps, planned(model, clouds(batches * SIZE, s))) for s in (1, 2, 3)]
    assert min(gains) > 0.995
    assert sum(gains) / 3 >= 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_examples_of_another_kind_are_noticed_on_a_trained_model(kind):
    model = a_model(60)
    inputs, targets = others(kind, 64, 3)
    assert trust_in(a_message(model, targets), inputs, generator()) == 0
    assert mean_gain(60, planned(model, (inputs, targets))) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_examples_of_another_kind_do_not_lose_on_a_fresh_model(kind):
    assert mean_gain(0, planned(a_model(), others(kind, 64, 3))) > 0.99


@pytest.mark.parametrize("steps", [0, 60])
def test_the_model_alone_does_not_lose(steps):
    model = a_model(steps)
    inputs, targets = clouds(SIZE, 4000)
    gains = [
        mean_gain(steps, model_given(a_message(model, targets), inputs, generator(seed)))
        for seed in range(3)
    ]
    assert sum(gains) / 3 > 0.995


@pytest.mark.parametrize("steps", [0, 60])
def test_examples_of_the_task_are_trusted(steps):
    inputs, targets = clouds(64, 77)
    assert trust_in(a_message(a_model(steps), targets), inputs, generator()) == 1


def test_outputs_are_compared_as_defined():
    """The cosine of centred outputs and δ, and N δ̄ᵀ S⁻¹ δ̄ of Hotelling's test, less chance."""
    model = a_model(60)
    inputs, targets = others("noise", 400, 3)
    outputs = model(inputs).detach().double()
    delta = torch.softmax(outputs, 1)
    delta[torch.arange(400), targets] -= 1
    centred = outputs - outputs.mean(0)
    found = check_outputs(a_message(model, targets), inputs)
    assert found is not None
    cosine = torch.nn.functional.cosine_similarity(centred.flatten(), delta.flatten(), 0)
    products = (centred * delta).sum(1)
    error = products.std() / 20 / (centred.norm() * delta.norm() / 400)
    assert found.scale == pytest.approx(float(cosine - error), rel=1e-4)
    free = delta[:, :-1]  # the entries of δ add up to 0
    mean, covariance = free.mean(0), torch.cov(free.T, correction=0)
    hotelling = float(mean @ torch.linalg.solve(covariance, mean))
    assert found.shift == pytest.approx(hotelling - (3 + 6**0.5) / 400, rel=1e-4)


@pytest.mark.parametrize("steps", [0, 60])
def test_skill_is_seen_where_the_model_has_some(steps):
    inputs, targets = clouds(64, 77)
    found = check_outputs(a_message(a_model(steps), targets), inputs)
    assert found is not None
    assert found.is_known is (steps > 0)


def test_a_model_is_fresh_or_trained_whatever_the_batch():
    inputs, targets = clouds(SIZE, 4000)
    fresh, trained = (
        freshness(
            a_message(a_model(steps), targets), torch.full_like(inputs, torch.nan), generator()
        )
        for steps in (0, 60)
    )
    assert (fresh, trained) == (1.0, 0.0)


def test_a_message_whose_outputs_cannot_be_seen_is_trusted():
    assert trust_in(lambda x: {"w": x.sum(0)}, torch.zeros(3, 4), generator()) == 1


def test_budgets_are_those_of_the_public_examples():
    """tr J_F = m / error, and Σ g² Σ = budget, with the public batch's own s² and g²."""
    model = a_model()
    inputs, targets = clouds(SIZE, 1)
    known = [gather(a_message(model, targets), inputs, generator(), "exact")]
    shape = Shape(
        {n: (1 + torch.rand_like(p),) for n, p in known[0].moments.squared_values.items()}
    )
    moments = moments_for(known, SIZE)
    squares = pool(known, SIZE, equally=False)[1]
    slopes = exact(model, inputs, targets).known_squared_sensitivities
    noise = OptimalNoise(utility_budget=0.3, least=0.0).mechanism(shape, moments)
    assert isinstance(noise, Mechanism)
    spent = float(total(g * noise.std[n].square() for n, g in squares.items()))
    assert spent == pytest.approx(0.3, rel=1e-3)
    noise = OptimalNoise(target_error=0.2, least=0.0).mechanism(shape, moments)
    assert isinstance(noise, Mechanism)
    trace = float(total(s / noise.std[n].square() for n, s in slopes.items()))
    assert inputs.numel() / trace == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_amounts_are_for_the_size_of_the_private_batch(reduction):
    """s² of a mean over twice the examples is half as large, that of a sum twice as large."""
    model, (inputs, targets) = a_model(), clouds(16, 1)

    loss_fn = functools.partial(cross_entropy, reduction=reduction)
    halves = [
        gather(GradientMessage(model, loss_fn, targets[cut]), inputs[cut], generator(), "exact")
        for cut in (slice(0, 8), slice(8, 16))
    ]
    whole = measure(GradientMessage(model, loss_fn, targets), inputs, "exact")
    made = moments_for(halves, 16)
    wanted = float(total(whole.known_squared_sensitivities.values()))
    assert float(total(made.known_squared_sensitivities.values())) == pytest.approx(
        wanted, rel=1e-4
    )


def test_public_batches_may_be_fewer_than_the_private_examples():
    model = a_model()
    moments = planned(model, clouds(6, 1)).moments
    assert moments.input_size == SIZE * 12

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, GradientNoise, OptimalNoise, OptimalPruning, measure
from gradveil._tensors import flatten
from gradveil.attacks import Observation
from gradveil.attacks._plan_reader import PlanLikelihood, plan_can_be_read
from gradveil.messages import LocalSteps
from gradveil.models import MLP
from gradveil.sensitivity import PerExample

from .planned import DATA, generator, observed, seeded

PLAIN = OptimalNoise(3.0, source="private", least=0.0, floor=0.0, cap=float("inf"))


def small(defense=PLAIN, size: int = 2) -> tuple[Observation, torch.Tensor]:
    """A tanh network with six inputs in float64, and its private batch."""
    model = seeded(lambda: MLP([6, 5, 4])).double()
    inputs = torch.randn(size, 6, generator=generator(), dtype=torch.float64)
    labels = torch.arange(size)
    message = GradientMessage(model, cross_entropy, labels)
    sent = defense.respond(message, inputs, generator(1)).sent
    observation = Observation(
        model, cross_entropy, sent, size, (6,), 4, labels=labels, defense=defense
    )
    return observation, inputs


def test_it_is_the_gaussian_density_with_the_plan_at_the_candidate():
    observation, inputs = small()
    found = PlanLikelihood(observation, observation.labels, seed=3)(inputs + 0.1)
    message = GradientMessage(observation.model, cross_entropy, observation.labels)
    moments = measure(message, inputs + 0.1, PerExample(8), generator=generator(3))
    normal = torch.distributions.Normal(
        flatten(message(inputs + 0.1)), flatten(observation.defense.plan(moments).std)
    )
    sent = flatten(observation.sent)
    constant = 0.5 * len(sent) * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    wanted = -normal.log_prob(sent).sum() - constant
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_its_gradient_is_that_of_finite_differences():
    observation, inputs = small()
    likelihood = PlanLikelihood(observation, observation.labels)
    assert torch.autograd.gradcheck(likelihood, inputs.clone().requires_grad_(), eps=1e-6)


def test_the_levels_alone_have_the_gradient_of_finite_differences():
    observation, inputs = small()
    likelihood = PlanLikelihood(observation, observation.labels)
    assert torch.autograd.gradcheck(
        lambda x: likelihood.levels(x)[1].log(), inputs.clone().requires_grad_(), eps=1e-6
    )


def test_entries_without_noise_leave_the_gradient_finite():
    model = seeded(lambda: MLP([784, 16, 10], activation="relu"))
    for least in (0.0, 0.25):
        observation = observed(model, 0, OptimalNoise(1.0, source="private", least=least))
        candidate = DATA.inputs[1:2].clone().requires_grad_()
        PlanLikelihood(observation, observation.labels)(candidate).backward()
        assert candidate.grad.isfinite().all()
        assert candidate.grad.abs().sum() > 0


def test_large_tensors_are_differentiated_too():
    model = seeded(lambda: MLP([784, 400, 10]))
    observation = observed(model, 0, OptimalNoise(1.0, source="private"))
    candidate = DATA.inputs[1:2].clone().requires_grad_()
    PlanLikelihood(observation, observation.labels)(candidate).backward()
    assert candidate.grad.isfinite().all()


def test_without_the_log_determinant_large_levels_would_explain_everything():
    """At a given utility small gradients get large noise, which the quadratic term likes."""
    model = seeded(lambda: MLP([784, 16, 10]))
    defense = OptimalNoise(utility_budget=1e3, source="private")
    observation = observed(model, 1, defense)
    likelihood = PlanLikelihood(observation, observation.labels)
    whole, quadratic = [], []
    for candidate in DATA.inputs[:4].split(1):
        means, variances = likelihood.levels(candidate)
        whole.append(float(likelihood(candidate)))
        quadratic.append(float(((likelihood.sent - means).square() / variances).sum()))
    assert whole.index(min(whole)) == 1
    assert quadratic.index(min(quadratic)) != 1


def test_what_can_be_read():
    model = nn.Linear(784, 10)
    model = nn.Sequential(nn.Flatten(), model)
    assert plan_can_be_read(observed(model, 0, OptimalNoise(1.0, source="private")))
    for defense in (
        OptimalNoise(1.0),
        OptimalNoise(1.0, source="private", granularity="layer"),
        GradientNoise(1.0),
        OptimalPruning(0.5, source="private"),
    ):
        assert not plan_can_be_read(observed(model, 0, defense))


def test_fedavg_updates_are_planned_with_probes_of_the_whole_batch():
    observation, inputs = small()
    local = LocalSteps(lr=0.1, steps=2)
    several = Observation(
        observation.model, cross_entropy, observation.sent, 2, (6,), 4,
        labels=observation.labels, defense=observation.defense, local=local,
    )  # fmt: skip
    candidate = inputs.clone().requires_grad_()
    PlanLikelihood(several, several.labels)(candidate).backward()
    assert candidate.grad.isfinite().all()

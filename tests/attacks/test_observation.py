from dataclasses import replace

import pytest
import torch
from torch import nn

from gradveil import (
    Defended,
    Defense,
    GradientNoise,
    GradientPruning,
    NoDefense,
    NonFiniteError,
    OptimalNoise,
)
from gradveil._random import named_stream
from gradveil.attacks import Observation, ThreatModel, observe
from gradveil.federated import Client
from gradveil.messages import LocalSteps
from gradveil.models import build_model
from gradveil.shapes import ModelSource

LOSS = nn.functional.cross_entropy
BATCH = (torch.linspace(-1, 1, 24).reshape(3, 8), torch.tensor([0, 2, 2]))


def make(threat: ThreatModel | None = None, **options: object) -> Observation:
    model = build_model("mlp", sizes=[8, 6, 4])
    return observe(model, LOSS, BATCH, NoDefense(), threat=threat, num_classes=4, **options)  # type: ignore[arg-type]


def test_undefended_gradient_is_what_is_sent() -> None:
    found = make()
    expected = found.message(BATCH[1])(BATCH[0])
    for name, value in found.sent.items():
        torch.testing.assert_close(value, expected[name])


def test_fedavg_sends_the_weight_change() -> None:
    found = make(local=LocalSteps(lr=0.1, steps=1))
    gradient = make().sent
    for name, value in found.sent.items():
        torch.testing.assert_close(value, -0.1 * gradient[name], rtol=1e-4, atol=1e-7)


def test_the_threat_model_decides_what_is_known() -> None:
    low_high = (torch.tensor(-1.0), torch.tensor(1.0))
    blind = make(ThreatModel(labels="unknown", statistics=False), input_range=low_high)
    assert blind.labels is None
    assert blind.label_counts is None
    assert blind.low is None
    assert blind.defense is None
    counts = make(ThreatModel(labels="counts"))
    assert counts.labels is None
    assert counts.label_counts is not None
    assert counts.label_counts.tolist() == [1, 0, 2, 0]


def test_the_plan_of_a_private_batch_is_known_only_in_the_worst_case() -> None:
    model = build_model("mlp", sizes=[8, 6, 4])
    for mechanism, known in (("unknown", False), ("known", False), ("realised", True)):
        threat = ThreatModel(mechanism=mechanism)
        found = observe(model, LOSS, BATCH, GradientPruning(0.5), threat=threat, num_classes=4)
        assert (found.mechanism is not None) is known


def test_a_plan_that_is_not_private_is_known_to_who_knows_the_defense() -> None:
    model = build_model("mlp", sizes=[8, 6, 4])
    for mechanism, known in (("unknown", False), ("known", True), ("realised", True)):
        threat = ThreatModel(mechanism=mechanism)
        for defense in (GradientNoise(0.1), OptimalNoise(0.1)):
            found = observe(model, LOSS, BATCH, defense, threat=threat, num_classes=4)
            assert (found.mechanism is not None) is known


def test_same_seed_same_bytes_and_the_global_generator_is_untouched() -> None:
    model, before = build_model("mlp", sizes=[8, 6, 4]), torch.get_rng_state()
    first, second = (
        observe(
            model, LOSS, BATCH, GradientNoise(0.1), num_classes=4,
            generator=torch.Generator().manual_seed(5),
        ).sent
        for _ in range(2)
    )  # fmt: skip
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), before)


def test_nan_is_an_error() -> None:
    found = make()
    name = next(iter(found.sent))
    broken = {**found.sent, name: torch.full_like(found.sent[name], torch.nan)}
    with pytest.raises(NonFiniteError, match="should be finite"):
        replace(found, sent=broken)


def test_wrong_shapes_are_an_error() -> None:
    found = make()
    name = next(iter(found.sent))
    with pytest.raises(ValueError, match="should have the shapes of `model`"):
        replace(found, sent={**found.sent, name: torch.zeros(2)})
    with pytest.raises(ValueError, match="should have the names of `model`"):
        replace(found, sent={})


def test_wrong_labels_are_an_error() -> None:
    found = make()
    with pytest.raises(ValueError, match="add up to the batch size 3"):
        replace(found, label_counts=torch.tensor([1, 1, 2, 0]))
    with pytest.raises(ValueError, match="should hold 4 counts"):
        replace(found, label_counts=torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"`labels` should hold .* for each of the 3 inputs"):
        replace(found, labels=torch.tensor([1, 2]))


class Sign(Defense):
    """Sends signs with noise: a response of its own, which no plan describes."""

    def respond(self, message, inputs, generator=None):  # type: ignore[no-untyped-def]
        values = message(inputs)
        noise = {n: torch.randn(v.shape, generator=generator) for n, v in values.items()}
        return Defended(values, None, {n: v.sign() + 0.1 * noise[n] for n, v in values.items()})


@pytest.mark.parametrize(
    "defense", [Sign(), OptimalNoise(0.1), OptimalNoise(0.1, source=ModelSource()), NoDefense()]
)
@pytest.mark.parametrize("local", [None, LocalSteps(lr=0.1, steps=2)], ids=["FedSGD", "FedAvg"])
def test_an_attacker_observes_the_very_bytes_that_a_client_sends(
    defense: Defense, local: LocalSteps | None
) -> None:
    model = build_model("mlp", sizes=[8, 6, 4])
    client = Client(0, *BATCH, defense, batch_size=3, seed=7, local=local)
    order = client.next_indices()
    reply = client.reply(model, LOSS)
    found = observe(
        model,
        LOSS,
        (BATCH[0][order], BATCH[1][order]),
        defense,
        num_classes=4,
        local=local,
        generator=named_stream(7, "defense", 0, 0),
    )
    assert found.sent.keys() == reply.values.keys()
    for name, value in reply.values.items():
        assert torch.equal(found.sent[name], value), name


def test_a_response_without_a_mechanism_tells_none_even_in_the_worst_case() -> None:
    model = build_model("mlp", sizes=[8, 6, 4])
    threat = ThreatModel(mechanism="realised")
    assert observe(model, LOSS, BATCH, Sign(), threat=threat, num_classes=4).mechanism is None


def test_the_memory_of_a_defense_stays_with_the_client() -> None:
    model, defense = (
        build_model("mlp", sizes=[8, 6, 4]),
        OptimalNoise(0.1, source=ModelSource()),
    )
    threat = ThreatModel(mechanism="known")
    found = observe(model, LOSS, BATCH, defense, threat=threat, num_classes=4)
    assert defense.state_dict()["step"] == 1
    assert found.defense is not None
    assert found.defense.state_dict() == {}

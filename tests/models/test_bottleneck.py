import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, NoDefense
from gradveil.attacks import InvertingGradients, ThreatModel, observe
from gradveil.models import VariationalBottleneck, build_model, with_bottleneck

INPUTS = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 1])


def test_it_sits_before_the_last_linear_layer_of_a_copy() -> None:
    model = build_model("mlp", sizes=[4, 6, 2])
    before = {name: p.clone() for name, p in model.named_parameters()}
    changed = with_bottleneck(model, size=3, noise_seed=None)
    assert {name: p.shape for name, p in model.named_parameters()} == {
        name: p.shape for name, p in before.items()
    }
    bottleneck, last = changed.layers[3]
    assert isinstance(bottleneck, VariationalBottleneck)
    hidden = torch.tanh(model.layers[1](INPUTS))
    mean = hidden @ bottleneck.encoder.weight[:3].T + bottleneck.encoder.bias[:3]
    torch.testing.assert_close(changed(INPUTS), last(bottleneck.decoder(mean)))


def test_noise_has_the_standard_deviation_that_the_encoder_says() -> None:
    bottleneck = VariationalBottleneck(2, 1).train()
    with torch.no_grad():
        for parameter in bottleneck.parameters():
            parameter.zero_()
        bottleneck.encoder.bias[1] = 1.0  # σ = log(1 + e)
        bottleneck.decoder.weight[0] = 1.0
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        sent = bottleneck(torch.zeros(4000, 2))[:, 0].detach()
    assert float(sent.std()) == pytest.approx(1.3133, rel=0.05)
    assert abs(float(sent.mean())) < 0.1


def test_in_eval_mode_the_noise_is_a_function_of_the_seed() -> None:
    model = build_model("mlp", sizes=[4, 6, 2])
    one, again, other = (with_bottleneck(model, 3, noise_seed=s) for s in (1, 1, 2))
    assert torch.equal(one(INPUTS), again(INPUTS))
    assert not torch.allclose(one(INPUTS), other(INPUTS))


def test_it_can_be_defended_and_attacked() -> None:
    model = with_bottleneck(build_model("mlp", sizes=[4, 6, 2]), 3)
    values = GradientMessage(model, cross_entropy, LABELS)(INPUTS)
    assert "layers.3.0.encoder.weight" in values
    observation = observe(
        model, cross_entropy, (INPUTS, LABELS), NoDefense(), num_classes=2, threat=ThreatModel()
    )
    found = InvertingGradients(steps=3, restarts=2)(observation, torch.Generator().manual_seed(0))
    assert found.inputs.shape == INPUTS.shape


def test_models_that_cannot_have_one() -> None:
    for model in (nn.Conv2d(1, 1, 1), nn.Linear(2, 2)):
        with pytest.raises(ValueError, match="a linear layer inside"):
            with_bottleneck(model)
    with pytest.raises(TypeError, match="model"):
        with_bottleneck(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size"):
        with_bottleneck(build_model("mlp", sizes=[4, 6, 2]), 0)

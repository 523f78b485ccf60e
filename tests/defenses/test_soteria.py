import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, Moments
from gradveil.attacks import Adaptive, InvertingGradients, ThreatModel, observe
from gradveil.attacks._matching import plan_channel
from gradveil.catalog import spec_of
from gradveil.defenses import Soteria
from gradveil.mechanisms import Mechanism
from tests.attacks.tiny import conv_net, error, observed, smooth_images

from .small_rivals import LABELS, gradient, images, model, seeded


def dense_scores(trained: nn.Module, batch: Tensor) -> Tensor:
    """Σ_b ‖∇_x r_bi‖ / (|r_bi| + 0.1) by the Jacobian of the layers before."""
    before = trained[:3]  # type: ignore[index]
    total = torch.zeros(144)
    for image in batch.split(1):
        slopes = jacrev(before)(image).flatten(2).squeeze(0).norm(dim=1)
        total += (slopes / (before(image)[0].abs() + 0.1)).detach()
    return total


def test_the_columns_of_the_lowest_scores_are_zero_and_nothing_else() -> None:
    message = gradient()
    plain = message(images())
    sent = Soteria(0.5, probes=400)(message, images(), seeded())
    scores = dense_scores(model(), images())
    cut = sent["3.weight"].abs().sum(0) == 0
    assert int(cut.sum()) == 72
    expected = scores <= scores.sort().values[71]
    assert float((cut == expected).float().mean()) > 0.9  # near the border probes may err
    clear = (scores / scores.sort().values[71]).log().abs() > 0.2
    assert torch.equal(cut[clear], expected[clear])
    assert torch.equal(sent["3.weight"][:, ~cut], plain["3.weight"][:, ~cut])
    for name in ("0.weight", "0.bias", "3.bias"):
        assert torch.equal(sent[name], plain[name])


def test_few_probes_cut_about_the_same() -> None:
    few, many = (Soteria(0.5, probes=p)(gradient(), images(), seeded(p)) for p in (16, 100))
    same = (few["3.weight"][0] == 0) == (many["3.weight"][0] == 0)
    assert float(same.float().mean()) > 0.8


def test_the_layer_can_be_named() -> None:
    deep = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3))
    message = GradientMessage(deep, cross_entropy, LABELS)
    first, last = (Soteria(0.5, layer=n)(message, images(), seeded()) for n in (None, "3"))
    assert int((first["1.weight"].abs().sum(0) == 0).sum()) == 18
    assert int((last["3.weight"].abs().sum(0) == 0).sum()) == 4
    assert bool(last["1.weight"].abs().sum(0).all())


def test_an_attacker_who_knows_it_does_not_count_the_columns() -> None:
    observation = observe(
        model(), cross_entropy, (images(), LABELS), Soteria(0.5), num_classes=3,
        threat=ThreatModel(mechanism="known"), generator=seeded(),
    )  # fmt: skip
    assert observation.mechanism is None
    estimate = torch.zeros_like(images())
    channel = plan_channel(observation, LABELS, estimate, seeded())
    zero = torch.cat([v.flatten() for v in observation.sent.values()]) == 0
    assert int(zero.sum()) == 3 * 72
    assert torch.equal(channel.silent, zero)


def test_the_columns_are_seen_in_the_message() -> None:
    defense, message = Soteria(0.5), gradient()
    sent = defense(message, images(), seeded())
    seen = defense.seen_in(sent)
    left = seen.prepared(message)(images())
    assert all(torch.allclose(left[name], value) for name, value in sent.items())
    assert defense.prepared(message) is message
    assert defense.seen_in(message(images())) is defense
    assert Soteria(0.5, layer="0").seen_in(sent).prepared(message) is message
    assert spec_of(seen) == spec_of(defense)


@pytest.mark.slow
def test_to_leave_them_out_is_enough_to_break_it() -> None:
    truth = smooth_images(2, 1, (6, 6))
    unaware = InvertingGradients.strong(steps=50, restarts=1)
    adaptive = Adaptive(unaware, finish=None)
    net = conv_net(1, (6, 6))
    for_unaware = observed(net, truth, [0, 1], Soteria(0.8))
    for_adaptive = observed(net, truth, [0, 1], Soteria(0.8), mechanism="known")
    found = adaptive(for_adaptive, seeded())
    assert error(found.inputs, truth) < 0.7 * error(unaware(for_unaware, seeded()).inputs, truth)


def test_its_plan_is_private_and_needs_what_it_observes() -> None:
    defense = Soteria(0.5)
    assert defense.about.private
    assert not defense.about.varies
    values, mechanism, _ = defense.respond(gradient(), images(), seeded())
    assert isinstance(mechanism, Mechanism)
    with pytest.raises(TypeError, match="looks at the message itself"):
        defense.plan(Moments.of_values(values, 4))


def test_models_and_messages_without_such_a_layer() -> None:
    with pytest.raises(TypeError, match="loss with a model"):
        Soteria(0.5)(lambda inputs: {"w": inputs.sum(0)}, images())
    with pytest.raises(ValueError, match=r"`layer` should name a linear layer.*'nine'.*\['3'\]"):
        Soteria(0.5, layer="nine")(gradient(), images())
    frozen = model()
    frozen[3].weight.requires_grad_(False)  # type: ignore[index]
    with pytest.raises(ValueError, match="a layer that is trained"):
        Soteria(0.5)(GradientMessage(frozen, cross_entropy, LABELS), images())
    with pytest.raises(ValueError, match="ratio"):
        Soteria(-0.1)

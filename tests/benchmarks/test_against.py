"""The peer's method is the published one, and comparisons with it are counted right."""

import json
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks import against
from benchmarks.against import (
    CASES,
    PEER,
    AttackCase,
    compare,
    draw_pictures,
    main,
    named,
    rows_of,
    settings_of,
)
from benchmarks.inverse_fed import InverseFed
from gradveil import GradientMessage, NoDefense
from gradveil.attacks import InvertingGradients, observe
from gradveil.data import Dataset, load_dataset
from gradveil.messages import LocalSteps
from gradveil.models import build_model

DIGITS = load_dataset("mnist", limit=40)
SMALL = replace(named(["mlp"])[0], images=2)


def seen(model: nn.Module, data: Dataset = DIGITS, local: LocalSteps | None = None):
    batch = data.batch(0, 2)
    return observe(
        model, cross_entropy, batch, NoDefense(), num_classes=10, input_range=data.range,
        local=local, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


def published(model, sent, labels, low, high, steps, weight, generator):
    """Geiping et al.'s algorithm with plain tensors: signs, Adam by hand, decays by milestones."""
    x = torch.randn(2, 1, 28, 28, generator=generator)
    mean, square, rate = torch.zeros_like(x), torch.zeros_like(x), 0.1
    parameters = list(model.parameters())
    for step in range(steps):
        x = x.detach().requires_grad_()
        loss = cross_entropy(model(x), labels)
        own = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)]
        )
        cost = 1 - torch.nn.functional.cosine_similarity(own, sent, dim=0)
        smooth = (x[..., 1:] - x[..., :-1]).abs().mean()
        smooth = smooth + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
        sign = torch.autograd.grad(cost + weight * smooth, x)[0].sign()
        mean, square = 0.9 * mean + 0.1 * sign, 0.999 * square + 0.001 * sign**2
        for milestone in (steps // 2.667, steps // 1.6, steps // 1.142):
            rate = rate * 0.1 if step == milestone else rate
        corrected = (square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
        x = (x.detach() - rate * mean / (1 - 0.9 ** (step + 1)) / corrected).clamp(low, high)
    return x


def test_the_peer_is_the_published_algorithm():
    model = build_model("mlp(sizes=[784, 12, 10])").double()
    data = replace(DIGITS, inputs=DIGITS.inputs.double())
    observation = seen(model, data)
    sent = torch.cat([value.flatten() for value in observation.sent.values()])
    steps: list[int] = []
    attack = InverseFed(steps=16, total_variation=1e-2, progress=lambda k, *_: steps.append(k))
    found = attack(observation, torch.Generator().manual_seed(3))
    start = torch.Generator().manual_seed(3)
    torch.set_default_dtype(torch.float64)
    try:
        wanted = published(
            model, sent, data.targets[:2], observation.low, observation.high, 16, 1e-2, start
        )
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found.inputs, wanted, rtol=0, atol=1e-9)
    assert steps[-1] == 16


def test_the_peer_leaves_the_model_alone_and_stops_in_time():
    model = build_model("conv-net(width=2, num_channels=1)").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steps: list[int] = []
    attack = InverseFed(time_budget=0.05, progress=lambda k, *_: steps.append(k))
    attack(seen(model), torch.Generator().manual_seed(0))
    assert 0 < steps[-1] < 24_000
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_peer_matches_updates_too():
    observation = seen(build_model("mlp(sizes=[784, 6, 10])"), local=LocalSteps(lr=0.1, steps=2))
    costs: list[float] = []
    attack = InverseFed(steps=20, progress=lambda step, steps, cost: costs.append(cost))
    attack(observation, torch.Generator().manual_seed(0))
    assert len(costs) == 20
    assert costs[-1] < costs[0]


def found_on(case: AttackCase, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    monkeypatch.setattr(against, "CASES", (case,))
    monkeypatch.setattr(against, "_data", lambda name, source: DIGITS)
    against._public.cache_clear()
    return [compare(settings) for settings in settings_of(case, "", 2, steps=3)]


def test_rows_hold_the_mean_and_the_paired_gain(monkeypatch):
    found = found_on(SMALL, monkeypatch)
    (row,) = rows_of(SMALL, found)
    ours, peer = ([x for one in found for x in one[name]["psnr"]] for name in ("strong", PEER))
    assert row.ours.mean == pytest.approx(sum(ours) / 4)
    assert row.gain.mean == pytest.approx((sum(ours) - sum(peer)) / 4)
    guess = DIGITS.to_pixels(DIGITS.inputs[:36].mean(0)).clamp(0, 1)
    errors = (guess - DIGITS.to_pixels(DIGITS.inputs[36:])).square().mean((1, 2, 3))
    assert row.guess == pytest.approx(float(-10 * errors.log10().mean()), rel=1e-4)


def test_each_case_shows_an_image_beside_what_was_found_of_it(tmp_path, monkeypatch):
    first, _ = found_on(SMALL, monkeypatch)
    truth = DIGITS.to_pixels(DIGITS.inputs[36])
    pictures = {name: torch.tensor(one["picture"]) / 255 for name, one in first.items()}
    torch.testing.assert_close(pictures.pop("truth"), truth, rtol=0, atol=1 / 255)
    for name, picture in pictures.items():
        psnr = float(-10 * (picture - truth).square().mean().log10())
        assert min(psnr, 40) == pytest.approx(min(first[name]["psnr"][0], 40), abs=0.2)
    draw_pictures({SMALL.title: first}, tmp_path / "against.png")
    assert (tmp_path / "against.png").stat().st_size > 1000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_can_be_observed(case):
    if case.model == "res-net":
        case = replace(case, model="res-net(width=2)")
    data = load_dataset(case.data, limit=12)
    model = replace(case, trained=min(case.trained, 1)).build(data)
    assert model.training == case.training_mode
    batch = data.batch(0, case.images)
    one, other = (case.observation(model, batch, data, 5, known) for known in (False, True))
    assert all(torch.equal(one.sent[name], other.sent[name]) for name in one.sent)
    assert (one.defense is None, other.defense is None) == (True, False)
    if case.bits is not None:
        levels = torch.cat([v.flatten() for v in one.sent.values()]).unique()
        assert 100 < len(levels) <= 2**case.bits
    elif case.defense is None and case.local is None:
        values = GradientMessage(model, cross_entropy, batch[1])(batch[0])
        torch.testing.assert_close(dict(one.sent), values)


def test_the_peer_is_the_same_method_as_ours():
    model = build_model("mlp(sizes=[784, 12, 10])").double()
    observation = seen(model, replace(DIGITS, inputs=DIGITS.inputs.double()))
    costs: dict[str, list[float]] = {"peer": [], "ours": []}
    for name, attack in (
        ("peer", InverseFed(24, total_variation=0.0)),
        ("ours", InvertingGradients(24, 0.1, 0.0)),
    ):
        watched = replace(attack, progress=lambda *told, name=name: costs[name].append(told[2]))
        watched(observation, torch.Generator().manual_seed(1))
    best = list(accumulate(costs["peer"], min))
    assert costs["ours"][:9] == pytest.approx(best[:9], abs=1e-9)
    assert best[8] < 0.95 * best[0]


def test_wrong_names_and_too_many_batches_are_refused():
    with pytest.raises(ValueError, match="one of mnist"):
        named(["mnits"])
    with pytest.raises(ValueError, match="should need less than the 5000"):
        settings_of(SMALL, "mnist", 3000)


def test_the_command_prints_and_keeps_its_rows(tmp_path):
    main(case=["mlp"], batches=1, steps=2, out=tmp_path)
    (row,) = json.loads((tmp_path / "against.json").read_text())["rows"]
    assert row["attack"] == "strong"
    assert row["batches"] == 1
    assert (tmp_path / "against.png").stat().st_size > 1000

import pytest
import torch
from torch import Tensor, nn

from gradveil import GradientNoise, GradientPruning
from gradveil.attacks import Analytic
from gradveil.messages import LocalSteps
from gradveil.models import build_model
from gradveil.scoring import score

from .small import observed, seeded, smooth_images


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 16, 16), (1, 6, 11)])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_one_image_is_exact(shape: tuple[int, int, int], activation: str) -> None:
    size = shape[0] * shape[1] * shape[2]
    model = build_model("mlp", sizes=[size, 32, 10], activation=activation)
    batch = smooth_images(1, *shape)
    found = Analytic()(observed(model, batch), seeded())
    assert float((found.inputs - batch[0]).abs().max()) < 1e-4
    assert found.targets.tolist() == batch[1].tolist()
    assert found.loss < 1e-10


def test_double_precision_table_and_local_step() -> None:
    model = build_model("mlp", sizes=[7, 12, 3]).double()
    batch = torch.rand(1, 7, generator=seeded(), dtype=torch.float64), torch.tensor([2])
    found = Analytic()(observed(model, batch, classes=3, local=LocalSteps(0.1, 1)), seeded())
    torch.testing.assert_close(found.inputs, batch[0], rtol=0, atol=1e-10)


class _OneEach(nn.Module):
    """A ReLU layer of which every unit sees only one of the given images."""

    def __init__(self, images: Tensor, copies: int = 3) -> None:
        super().__init__()
        flat = images.flatten(1).repeat_interleave(copies, 0)
        centred = flat - images.flatten(1).mean(dim=0)
        own = (centred * flat).sum(dim=1)
        others = (centred @ images.flatten(1).T).sort(dim=1).values[:, -2]
        self.first = nn.Linear(flat.shape[1], len(flat))
        self.last = nn.Linear(len(flat), 10)
        with torch.no_grad():
            self.first.weight.copy_(centred)
            self.first.bias.copy_(-(own + others) / 2)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.last(self.first(inputs.flatten(1)).relu())
        return logits


def test_units_that_only_one_example_reaches_give_it_away() -> None:
    batch = smooth_images(6, 1, 14, 14, seed=3)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = _OneEach(batch[0])
    found = Analytic()(observed(model, batch), seeded())
    scores = score(found, batch, ssim=False)
    assert float(scores.mse.max()) < 1e-8
    assert found.loss < 1e-8


def test_a_mixed_batch_returns_the_right_shape_and_says_what_is_unexplained() -> None:
    batch = smooth_images(4, 1, 8, 8)
    model = build_model("mlp", sizes=[64, 16, 10])
    found = Analytic()(observed(model, batch), seeded())
    assert found.inputs.shape == batch[0].shape
    assert 0 <= found.loss <= 1


def test_noise_is_averaged_over_rows_and_pruned_entries_are_left_out() -> None:
    batch = smooth_images(1, 1, 14, 14)
    model = build_model("mlp", sizes=[196, 256, 10])
    few = build_model("mlp", sizes=[196, 4, 10])
    noise = GradientNoise(0.002)
    errors = [
        float(score(Analytic()(observed(m, batch, defense=noise), seeded()), batch, ssim=False).mse)
        for m in (model, few)
    ]
    assert errors[0] < 0.01
    assert errors[0] < errors[1]
    pruned = Analytic()(observed(model, batch, defense=GradientPruning(0.5)), seeded())
    assert float((pruned.inputs - batch[0]).abs().max()) < 1e-4


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 10)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)),
    ],
    ids=["convolution first", "no bias"],
)
def test_models_without_such_a_layer(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"should start with a trainable `nn\.Linear` with a bias"):
        Analytic()(observed(model, smooth_images(1, 1, 8, 8)))

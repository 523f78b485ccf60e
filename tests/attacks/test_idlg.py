import torch
from torch import Tensor, nn

from gradveil.attacks import IDLG
from gradveil.models import build_model
from gradveil.scoring import score
from tests.models.le_net import LeNet, le_net

from .small import observed, seeded, smooth_images


class _NoBias(LeNet):
    def __init__(self) -> None:
        super().__init__(num_classes=5, input_shape=(1, 8, 8))
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                module.bias = None


def test_label_first_then_the_image() -> None:
    model = le_net(input_shape=(3, 8, 8), num_classes=5)
    batch = smooth_images(1, 3, 8, 8, classes=5)
    scores = score(IDLG()(observed(model, batch, classes=5), seeded()), batch)
    assert scores.label_accuracy == 1
    assert scores.psnr is not None
    assert float(scores.psnr) > 40


def test_two_images_of_one_label() -> None:
    model = le_net(input_shape=(1, 8, 8), num_classes=5)
    batch = smooth_images(2, 1, 8, 8)[0], torch.tensor([3, 3])
    attack = IDLG(steps=400, restarts=1)
    scores = score(attack(observed(model, batch, classes=5), seeded()), batch, ssim=False)
    assert scores.label_accuracy == 1
    assert float(scores.mse.mean()) < 1e-2


def test_a_model_without_bias() -> None:
    model: nn.Module = build_model("tests.attacks.test_idlg:_NoBias", allow_imports=True)
    batch: tuple[Tensor, Tensor] = smooth_images(1, 1, 8, 8, classes=5)
    scores = score(IDLG()(observed(model, batch, classes=5), seeded()), batch, ssim=False)
    assert scores.label_accuracy == 1
    assert float(scores.mse) < 1e-3


def test_time_budget() -> None:
    model = le_net(input_shape=(1, 8, 8), num_classes=5)
    batch = smooth_images(1, 1, 8, 8, classes=5)
    found = IDLG(time_budget=0.0)(observed(model, batch, classes=5), seeded())
    assert found.status == "time budget"

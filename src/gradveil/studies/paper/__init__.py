"""The figures and tables of the paper."""

from gradveil.studies.runner import Study

from ._families import AXES, NAMES, PAIRS, levels
from ._images import ImagesStudy
from ._layers import LayerNoiseStudy, LayerTableStudy
from ._reconstruction import ReconstructionStudy
from ._tradeoff import TradeoffStudy
from ._training import TrainingStudy
from ._utility import UtilityStudy

STUDIES: tuple[Study, ...] = (
    ReconstructionStudy("mnist-pruning", "MNIST", "pruning"),
    TrainingStudy("mnist-pruning-training", "pruning"),
    TradeoffStudy("mnist-pruning-tradeoff", "MNIST", "pruning"),
    ReconstructionStudy("mnist-noise", "MNIST", "noise"),
    TrainingStudy("mnist-noise-training", "noise"),
    TradeoffStudy("mnist-noise-tradeoff", "MNIST", "noise"),
    ImagesStudy("mnist-noise-images", "MNIST", (("dpsgd", 0.05), ("optimal-dpsgd", 0.1))),
    TradeoffStudy("cifar-pruning-tradeoff", "CIFAR-10", "pruning"),
    ImagesStudy(
        "cifar-pruning-images", "CIFAR-10", (("gradient-pruning", 0.9), ("optimal-pruning", 0.8))
    ),
    TradeoffStudy("cifar-noise-tradeoff", "CIFAR-10", "noise"),
    UtilityStudy("cifar-noise-utility"),
    ReconstructionStudy("cifar-noise-error", "CIFAR-10", "noise"),
    LayerNoiseStudy(),
    LayerTableStudy(),
)

__all__ = ["AXES", "NAMES", "PAIRS", "STUDIES", "levels"]

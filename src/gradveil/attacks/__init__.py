"""Attacks that rebuild private data from what was sent, and the yardstick that scores them."""

from gradveil.messages import LocalSteps

from ._adaptive import Adaptive
from ._analytic import Analytic
from ._cafe import CAFE
from ._dlg import DLG
from ._grad_inversion import GradInversion
from ._idlg import IDLG
from ._intervals import Interval, bootstrap_interval, paired_interval
from ._inverting_gradients import InvertingGradients
from ._labels import estimate_label_counts, recover_labels
from ._observation import Observation, observe
from ._peel import Peel
from ._progress_bar import progress_bar
from ._reconstruction import Attack, Reconstruction
from ._refine import Finish
from ._regularisers import TotalVariation
from ._scores import Scores, score
from ._threat import ThreatModel
from ._vertical import (
    VerticalNet,
    VerticalObservation,
    VerticalWorker,
    observe_vertical,
    vertical_net,
)

__all__ = [
    "CAFE",
    "DLG",
    "IDLG",
    "Adaptive",
    "Analytic",
    "Attack",
    "Finish",
    "GradInversion",
    "Interval",
    "InvertingGradients",
    "LocalSteps",
    "Observation",
    "Peel",
    "Reconstruction",
    "Scores",
    "ThreatModel",
    "TotalVariation",
    "VerticalNet",
    "VerticalObservation",
    "VerticalWorker",
    "bootstrap_interval",
    "estimate_label_counts",
    "observe",
    "observe_vertical",
    "paired_interval",
    "progress_bar",
    "recover_labels",
    "score",
    "vertical_net",
]

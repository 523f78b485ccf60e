"""Attacks that rebuild private data from what was sent; `gradveil.scoring` scores them."""

from ._adaptive import Adaptive
from ._analytic import Analytic
from ._attack import FINISHED, INTERRUPTED, TIME_BUDGET, Attack, Progress, Reconstruction
from ._cafe import CAFE, VerticalNet
from ._descent import Watch
from ._dlg import DLG, IDLG
from ._exact_inversion import ExactInversion
from ._grad_inversion import GradInversion
from ._identify import IdentificationReport, Identify, identify_trials
from ._inverting_gradients import InvertingGradients
from ._labels import recover_labels
from ._malicious import Fishing, Imprint
from ._observation import Observation, ThreatModel, observe
from ._peel import Peel
from ._plan_reader import PlanReader
from ._priors import TotalVariation
from ._refine import Finish
from ._regress import Regress
from ._span_check import SpanCheck
from ._tab_leak import TabLeak
from ._token_rows import TokenRows
from ._unpool import Unpool

# What `__all__` does not list is for our own packages.
__all__ = [
    "CAFE",
    "DLG",
    "IDLG",
    "Adaptive",
    "Analytic",
    "Attack",
    "ExactInversion",
    "Fishing",
    "GradInversion",
    "Identify",
    "Imprint",
    "InvertingGradients",
    "Observation",
    "Peel",
    "PlanReader",
    "Reconstruction",
    "Regress",
    "SpanCheck",
    "TabLeak",
    "ThreatModel",
    "TokenRows",
    "TotalVariation",
    "Unpool",
    "identify_trials",
    "observe",
    "recover_labels",
]

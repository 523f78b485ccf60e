"""Attacks that rebuild private data from what was sent; `gradveil.scoring` scores them."""

from ._adaptive import Adaptive
from ._analytic import Analytic
from ._attack import Attack, Reconstruction
from ._cafe import CAFE
from ._dlg import DLG
from ._exact_inversion import ExactInversion
from ._fishing import Fishing
from ._grad_inversion import GradInversion
from ._identify import Identify
from ._identify_trials import identify_trials
from ._idlg import IDLG
from ._imprint import Imprint
from ._inverting_gradients import InvertingGradients
from ._labels import recover_labels
from ._observation import Observation, ThreatModel, observe
from ._peel import Peel
from ._plan_reader import PlanReader
from ._priors import TotalVariation
from ._regress import Regress
from ._span_check import SpanCheck
from ._tab_leak import TabLeak
from ._token_rows import TokenRows
from ._unpool import Unpool

# isort: split
# for our own packages
from ._attack import FINISHED as FINISHED
from ._attack import INTERRUPTED as INTERRUPTED
from ._attack import TIME_BUDGET as TIME_BUDGET
from ._attack import Progress as Progress
from ._cafe import VerticalNet as VerticalNet
from ._descent import Watch as Watch
from ._identify_trials import IdentificationReport as IdentificationReport
from ._refine import Finish as Finish

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

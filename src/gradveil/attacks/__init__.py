"""Attacks that rebuild private data from what was sent, and the yardstick that scores them."""

from gradveil.messages import LocalSteps
from gradveil.scoring import (
    Interval,
    Scores,
    TableScores,
    TokenScores,
    bootstrap_interval,
    paired_interval,
    score,
    score_table,
    score_tokens,
)

from ._adaptive import Adaptive
from ._analytic import Analytic
from ._attack import Attack, CallableAttack, Progress, as_attack
from ._cafe import CAFE
from ._dlg import DLG
from ._evidence import Denoised, TotalVariation
from ._exact import ExactInversion
from ._grad_inversion import GradInversion
from ._identification import (
    CandidateBound,
    CandidatePoint,
    Identification,
    IdentificationReport,
    Identify,
    Lineups,
    Trial,
    candidate_bound,
    draw_lineups,
    identify_trials,
)
from ._idlg import IDLG
from ._inverting_gradients import InvertingGradients
from ._labels import estimate_label_counts, recover_labels
from ._malicious import Fishing, Imprint, ImprintedNet
from ._observation import Observation, observe
from ._peeling import Peel
from ._plan_reading import PlanReader
from ._reconstruction import FINISHED, INTERRUPTED, TIME_BUDGET, Reconstruction
from ._search import Descent, Finish, Watch, minimise, progress_bar
from ._tables import TabLeak, TableReconstruction
from ._text import SpanCheck, TokenRows
from ._threat import ThreatModel
from ._unpooling import Cooling, Unpool
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
    "FINISHED",
    "IDLG",
    "INTERRUPTED",
    "TIME_BUDGET",
    "Adaptive",
    "Analytic",
    "Attack",
    "CallableAttack",
    "CandidateBound",
    "CandidatePoint",
    "Cooling",
    "Denoised",
    "Descent",
    "ExactInversion",
    "Finish",
    "Fishing",
    "GradInversion",
    "Identification",
    "IdentificationReport",
    "Identify",
    "Imprint",
    "ImprintedNet",
    "Interval",
    "InvertingGradients",
    "Lineups",
    "LocalSteps",
    "Observation",
    "Peel",
    "PlanReader",
    "Progress",
    "Reconstruction",
    "Scores",
    "SpanCheck",
    "TabLeak",
    "TableReconstruction",
    "TableScores",
    "ThreatModel",
    "TokenRows",
    "TokenScores",
    "TotalVariation",
    "Trial",
    "Unpool",
    "VerticalNet",
    "VerticalObservation",
    "VerticalWorker",
    "Watch",
    "as_attack",
    "bootstrap_interval",
    "candidate_bound",
    "draw_lineups",
    "estimate_label_counts",
    "identify_trials",
    "minimise",
    "observe",
    "observe_vertical",
    "paired_interval",
    "progress_bar",
    "recover_labels",
    "score",
    "score_table",
    "score_tokens",
    "vertical_net",
]

"""How attacks search: descent, second-order steps, L-BFGS, and where they start."""

from ._candidates import check_alike, message_of, noise_start, parts_of, sent_row
from ._consensus import consensus, order_like
from ._determined import determined_share
from ._head import ROUGH, Head, features_of, head_of, head_of_update
from ._head_equations import HeadEquations, features_from, features_noise
from ._lbfgs import Point, minimise_lbfgs
from ._lbfgs_matching import LBFGSMatching, blank_inputs, message_distance
from ._optimise import SETTLED, Cost, Descent, Minimum, Watch, clamp, minimise
from ._posterior import PosteriorSearch
from ._progress_bar import progress_bar
from ._refine import Finish, Objective, Refined, refine
from ._smoothing import SmoothLeakyReLU, SmoothTwin
from ._stages import Stages, refine_in_stages, refine_one
from ._targets import SoftTargets, labels_of, soft_targets

__all__ = [
    "ROUGH",
    "SETTLED",
    "Cost",
    "Descent",
    "Finish",
    "Head",
    "HeadEquations",
    "LBFGSMatching",
    "Minimum",
    "Objective",
    "Point",
    "PosteriorSearch",
    "Refined",
    "SmoothLeakyReLU",
    "SmoothTwin",
    "SoftTargets",
    "Stages",
    "Watch",
    "blank_inputs",
    "check_alike",
    "clamp",
    "consensus",
    "determined_share",
    "features_from",
    "features_noise",
    "features_of",
    "head_of",
    "head_of_update",
    "labels_of",
    "message_distance",
    "message_of",
    "minimise",
    "minimise_lbfgs",
    "noise_start",
    "order_like",
    "parts_of",
    "progress_bar",
    "refine",
    "refine_in_stages",
    "refine_one",
    "sent_row",
    "soft_targets",
]

"""The functions that run cells, one kind a file; importing this package registers them."""

from ._attack import attack
from ._bounds import bound, candidate_bound, learned_bound
from ._estimator_cost import estimator_cost
from ._estimator_share import estimator_share
from ._identification import identification
from ._layer_sizes import layer_sizes
from ._parts import OFFICIAL, dataset
from ._photos import PHOTOS, check_photos, photo_attack, photo_training
from ._plan_quality import plan_quality
from ._prediction import training_prediction
from ._private import private_training
from ._public_plans import public_plans
from ._short_training import short_training
from ._training import training

__all__ = [
    "OFFICIAL",
    "PHOTOS",
    "attack",
    "bound",
    "candidate_bound",
    "check_photos",
    "dataset",
    "estimator_cost",
    "estimator_share",
    "identification",
    "layer_sizes",
    "learned_bound",
    "photo_attack",
    "photo_training",
    "plan_quality",
    "private_training",
    "public_plans",
    "short_training",
    "training",
    "training_prediction",
]

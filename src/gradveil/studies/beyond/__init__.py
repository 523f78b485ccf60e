"""What the paper does not show: bounds, aware attackers, matching, costs, FedAvg, utilities."""

from gradveil.studies.runner import Study

from ._adaptive import AdaptiveStudy
from ._bound import BoundStudy
from ._estimators import EstimatorStudy
from ._fedavg import FedAvgStudy
from ._fingerprint import FingerprintStudy
from ._frontier import PHOTOS, FrontierStudy
from ._leakage import LeakageStudy
from ._matching import MatchingStudy
from ._plans import PlanStudy
from ._prediction import PredictionStudy
from ._private_training import PrivateTrainingStudy
from ._public_plans import PublicPlanStudy

STUDIES: tuple[Study, ...] = (
    BoundStudy(),
    AdaptiveStudy("adaptive-pruning", "pruning"),
    AdaptiveStudy("adaptive-noise", "noise"),
    AdaptiveStudy("cifar-adaptive-pruning", "pruning", "CIFAR-10"),
    AdaptiveStudy("cifar-adaptive-noise", "noise", "CIFAR-10"),
    MatchingStudy(),
    EstimatorStudy(),
    PlanStudy(),
    FingerprintStudy(),
    PublicPlanStudy(),
    FedAvgStudy(),
    PredictionStudy(),
    PrivateTrainingStudy(),
    LeakageStudy(),
    FrontierStudy(),
    PHOTOS,
)

__all__ = ["STUDIES"]

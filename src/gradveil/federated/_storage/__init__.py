"""What a training run keeps: checkpoints, its fingerprint, its history and curves."""

from ._checkpoint import CheckpointError, has_checkpoint, load_checkpoint, save_checkpoint
from ._curves import draw_curves
from ._fingerprint import describe, digest, fingerprint_of
from ._folder import check_unused, hold_folder, save_history, save_weights
from ._history import RoundMetrics, Skip, TrainingHistory

__all__ = [
    "CheckpointError",
    "RoundMetrics",
    "Skip",
    "TrainingHistory",
    "check_unused",
    "describe",
    "digest",
    "draw_curves",
    "fingerprint_of",
    "has_checkpoint",
    "hold_folder",
    "load_checkpoint",
    "save_checkpoint",
    "save_history",
    "save_weights",
]

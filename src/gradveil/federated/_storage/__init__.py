"""The files of a training run: checkpoints, history, curves, weights."""

from ._checkpoint import CheckpointError, has_checkpoint, load_checkpoint, save_checkpoint
from ._curves import draw_curves
from ._fingerprint import describe, digest, run_fingerprint
from ._folder import check_unused, hold_folder, save_history, save_weights
from ._history import RoundMetrics, Skip, TrainingHistory
from ._spent import note_releases, noted_releases

__all__ = [
    "CheckpointError",
    "RoundMetrics",
    "Skip",
    "TrainingHistory",
    "check_unused",
    "describe",
    "digest",
    "draw_curves",
    "has_checkpoint",
    "hold_folder",
    "load_checkpoint",
    "note_releases",
    "noted_releases",
    "run_fingerprint",
    "save_checkpoint",
    "save_history",
    "save_weights",
]

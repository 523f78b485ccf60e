"""Which defense, how strong, and what it costs: curves over strengths, and goals."""

from ._goal import Goal
from ._measuring import Training
from ._recommend import DEFENSES, STRENGTHS, MakeEngine, recommend

__all__ = ["DEFENSES", "STRENGTHS", "Goal", "MakeEngine", "Training", "recommend"]

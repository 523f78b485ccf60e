"""What a step of the audit's training gains, and amounts of noise and pruning by it."""

from ._solve import gain_of_a_step, ratio_for, scale_for

__all__ = ["gain_of_a_step", "ratio_for", "scale_for"]

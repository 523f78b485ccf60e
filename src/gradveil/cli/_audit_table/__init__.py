"""An audit's result for the terminal, in 100 columns."""

from ._show import show_audit

__all__ = ["show_audit"]

"""`gradveil audit`: which defense, how strong, and what it costs."""

from ._command import run_audit

__all__ = ["run_audit"]

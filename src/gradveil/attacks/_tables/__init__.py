"""Attacks on rows of tables with continuous and categorical columns."""

from ._tab_leak import TabLeak, TableReconstruction

__all__ = ["TabLeak", "TableReconstruction"]

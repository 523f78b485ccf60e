"""Attacks on models of tokens: which tokens, and in which order."""

from ._span_check import SpanCheck
from ._token_rows import TokenRows

__all__ = ["SpanCheck", "TokenRows"]

"""The evidence: every figure and claim of the paper, and what goes beyond it, from small cells."""

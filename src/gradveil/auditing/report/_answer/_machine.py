"""The summary of a report for machines: answers and points as plain data."""

import dataclasses
import math
from typing import Any

from gradveil.auditing._result import AuditResult

SCHEMA = "gradveil-audit-summary/1"


def machine_summary(result: AuditResult) -> dict[str, Any]:
    """What was audited, the answers, and one row for each point, or each defense and attack.

    Numbers that JSON does not have (infinite, undefined) are null.
    """
    setup, frontier = result.setup, result.frontier
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "date": setup.date,
        "versions": setup.versions,
        "model": setup.model,
        "weights": setup.weights,
        "data": setup.data,
        "command": setup.command,
        "complete": result.complete,
    }
    if frontier is None:
        found |= {"answers": [], "points": result.rows()}
    else:
        answers = [dataclasses.asdict(answer) for answer in frontier.answers]
        found |= {"answers": answers, "points": frontier.rows()}
    plain: dict[str, Any] = _plain(found)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

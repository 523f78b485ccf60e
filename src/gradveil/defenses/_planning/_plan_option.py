"""The option that says what a plan is made from."""

import functools
import inspect
from typing import Any, TypeVar

from gradveil._checks import check_choice

T = TypeVar("T", bound=type)

SOURCES = ("model", "private")


def check_plan_from(source: str) -> None:
    """Require a source that a defense can plan from by itself."""
    check_choice(source, "plan", SOURCES)


def takes_plan(cls: T) -> T:
    """Let a dataclass with the field `plan_from` take it as `plan`, too.

    `plan` is the method that makes a mechanism of moments, so the field has another name; whoever
    writes a defense down calls the option `plan`.
    """
    init = cls.__init__  # type: ignore[misc]
    signature = inspect.signature(init)

    @functools.wraps(init)
    def with_plan(self: Any, *args: Any, plan: str | None = None, **options: Any) -> None:
        if plan is not None:
            if "plan_from" in options:
                raise TypeError("Give `plan` or `plan_from`, which mean the same. Found both.")
            options["plan_from"] = plan
        init(self, *args, **options)

    default = signature.parameters["plan_from"].default
    option = inspect.Parameter("plan", inspect.Parameter.KEYWORD_ONLY, default=default)
    others = [p for p in signature.parameters.values() if p.name != "plan_from"]
    with_plan.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*others, option]
    )
    cls.__init__ = with_plan  # type: ignore[misc]
    return cls

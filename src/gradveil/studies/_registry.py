"""Every study by its name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from gradveil._checks import first_line
from gradveil._suggest import suggestion

from . import beyond, paper
from ._study import Study

STUDIES: dict[str, Study] = {study.name: study for study in (*paper.STUDIES, *beyond.STUDIES)}
"""In the order in which ``gradveil reproduce all`` runs them."""


def select_studies(names: Sequence[str]) -> list[Study]:
    """The named studies without repetition; ``all`` stands for every one.

    A name with a colon, ``package.module:STUDY``, is a study of the user's.
    """
    if not names:
        raise ValueError(
            f"Parameter `names` should be `all` or studies of {[*STUDIES]}. Found none. Name some."
        )
    wanted = [each for name in names for each in ([*STUDIES] if name == "all" else [name])]
    return [_study(name) for name in dict.fromkeys(wanted)]


def _study(name: str) -> Study:
    if ":" in name:
        return _import_study(name)
    if name not in STUDIES:
        raise ValueError(
            f"Parameter `names` should be `all` or studies of {[*STUDIES]}. Found {name!r}."
            f"{suggestion(name, STUDIES) or ' Check the spelling.'}"
        )
    return STUDIES[name]


def _import_study(name: str) -> Study:
    module, _, attribute = name.partition(":")
    try:
        study = getattr(importlib.import_module(module), attribute, None)
    except (Exception, SystemExit) as error:
        raise ValueError(
            "A study of your own should be 'package.module:STUDY', importable from here. Found"
            f" {name!r}, which fails with `{first_line(error)}`. Check the spelling."
        ) from error
    if not isinstance(study, Study):
        raise ValueError(
            f"`{name}` should be a study, with name, title, figure, cells, numbers and draw. Found"
            f" {type(study).__name__}."
        )
    return study

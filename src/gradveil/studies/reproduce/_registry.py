"""Every study by its name."""

from __future__ import annotations

from collections.abc import Sequence

from gradveil._imports import AllowImports, import_object
from gradveil._suggest import suggestion
from gradveil.studies import beyond, paper
from gradveil.studies.runner import Study

STUDIES: dict[str, Study] = {study.name: study for study in (*paper.STUDIES, *beyond.STUDIES)}
"""In the order in which ``gradveil reproduce all`` runs them."""


def select_studies(names: Sequence[str], *, allow_imports: AllowImports = False) -> list[Study]:
    """The named studies without repetition; ``all`` stands for every one.

    A name with a colon, ``package.module:STUDY``, is a study of the user's, whose code is run; it
    needs `allow_imports`: True for names that the local user typed, or the paths that are allowed.
    """
    if not names:
        raise ValueError(
            f"Parameter `names` should be `all` or studies of {[*STUDIES]}. Found none. Name some."
        )
    wanted = [each for name in names for each in ([*STUDIES] if name == "all" else [name])]
    return [_study(name, allow_imports) for name in dict.fromkeys(wanted)]


def _study(name: str, allow_imports: AllowImports) -> Study:
    if ":" in name:
        return _import_study(name, allow_imports)
    if name not in STUDIES:
        raise ValueError(
            f"Parameter `names` should be `all` or studies of {[*STUDIES]}. Found {name!r}."
            f"{suggestion(name, STUDIES) or ' Check the spelling.'}"
        )
    return STUDIES[name]


def _import_study(name: str, allow_imports: AllowImports) -> Study:
    study = import_object(name, "study", allow_imports, "STUDY")
    if not isinstance(study, Study):
        raise ValueError(
            f"`{name}` should be a study, with name, title, figure, cells, numbers and draw. Found"
            f" {type(study).__name__}."
        )
    return study

"""Rooms of studies, the report and `Structured`: small, and entered through their own doors."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
ROOMS = ("studies", "auditing/report", "sensitivity/_structured")
LARGEST = 15


def imported(path: Path) -> Iterator[tuple[str, ...]]:
    """The modules of the package that a file names in its imports."""
    package = path.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((*module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)


def private_owner(module: tuple[str, ...]) -> tuple[str, ...] | None:
    """The package that a private module belongs to, if it is one."""
    for place in range(2, len(module)):
        stem = SOURCE.joinpath(*module[: place + 1])
        is_module = stem.with_suffix(".py").exists() or stem.is_dir()
        if module[0] == "gradveil" and module[place].startswith("_") and is_module:
            return module[:place]
    return None


def is_in_a_room(owner: tuple[str, ...]) -> bool:
    return "/".join(owner[1:]).startswith(ROOMS)


def test_private_modules_of_rooms_are_imported_from_inside_only():
    wrong = [
        f"{path.relative_to(SOURCE)}: {'.'.join(module)}"
        for path in sorted((SOURCE / "gradveil").rglob("*.py"))
        for module in imported(path)
        if (owner := private_owner(module)) is not None
        and is_in_a_room(owner)
        and path.relative_to(SOURCE).parts[: len(owner)] != owner
    ]
    assert wrong == []


def test_the_rule_knows_a_private_module():
    assert private_owner(("gradveil", "studies", "runner", "_store", "Store")) == (
        "gradveil",
        "studies",
        "runner",
    )
    assert private_owner(("gradveil", "studies", "runner", "Store")) is None
    assert private_owner(("gradveil", "__version__")) is None


@pytest.mark.parametrize("room", ROOMS)
def test_no_folder_holds_more_than_one_can_keep_in_mind(room: str):
    top = SOURCE / "gradveil" / room
    for folder in [top, *(path for path in top.rglob("*") if path.is_dir())]:
        assert len([*folder.glob("*.py")]) <= LARGEST, folder

"""A hash of the source files that a cell's function depends on."""

from __future__ import annotations

import ast
import hashlib
import io
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tokenize import COMMENT, tokenize

_PACKAGE = "gradveil"
_OUTWARD = ("auditing", "bench", "cli", "flower", "studies")
"""Sub-packages that `import gradveil` does not stand for: they build on the core."""
_WITHOUT_EFFECT = re.compile(r"gradveil\.studies(\.runner(\.\w+)*)?")
"""They hand cells on and keep what these find, and have no part in what that is."""
_MODULE_NAME = re.compile(r"gradveil(\.\w+)+(?=:|$)")


@cache
def sources_hash(module: str) -> str:
    """The SHA-256 of a module and of all modules of gradveil and its own package that it imports.

    Imports are read from the text, wherever they stand in it, without running anything. Docstrings,
    comments and empty lines do not count: a better sentence changes no result. Computed once for
    each module and process.
    """
    digest = hashlib.sha256()
    for name in sorted(dependencies(module)):
        path = source_path(name)
        assert path is not None
        content = _code(path)
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@cache
def _code(path: Path) -> bytes:
    return code_of(path.read_bytes())


def code_of(source: bytes) -> bytes:
    """A source without docstrings, comments and empty lines; one with a mistake as it is."""
    try:
        tree = ast.parse(source)
        lines = source.decode().split("\n")
        comments = list(_comments(source)) if b"#" in source else []
    except (SyntaxError, UnicodeDecodeError):
        return source
    docstrings = [span for node in ast.walk(tree) for span in _text_spans(node, lines)]
    for first, start, last, end in sorted([*docstrings, *comments], reverse=True):
        lines[first - 1] = lines[first - 1][:start] + lines[last - 1][end:]
        lines[first:last] = [""] * (last - first)
    kept = [line.rstrip() for line in lines if line.strip()]
    return "\n".join(kept).encode()


def _comments(source: bytes) -> Iterator[tuple[int, int, int, int]]:
    for token in tokenize(io.BytesIO(source).readline):
        if token.type == COMMENT:
            yield (*token.start, *token.end)


def _text_spans(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """Where strings stand that are statements of their own: docstrings, and those of constants."""
    value = node.value if isinstance(node, ast.Expr) else None
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        assert value.end_lineno is not None
        assert value.end_col_offset is not None
        first, last = lines[value.lineno - 1], lines[value.end_lineno - 1]
        start = len(first.encode()[: value.col_offset].decode())
        end = len(last.encode()[: value.end_col_offset].decode())
        yield value.lineno, start, value.end_lineno, end


def dependencies(module: str) -> set[str]:
    """The module and what it imports of gradveil and of its own package, directly or not."""
    modules: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = source_path(name)
        if name in modules or path is None:
            continue
        modules.add(name)
        roots = {_PACKAGE, module.partition(".")[0]}
        waiting += [each for each in _imports(name, path) if each.partition(".")[0] in roots]
    return modules


def source_path(module: str) -> Path | None:
    """The file of a module, found without importing it; None for other things."""
    top, *rest = module.split(".")
    spec = None if top in ("", "__main__") else find_spec(top)
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.has_location and spec.origin else None
    for folder in spec.submodule_search_locations or ():
        stem = Path(folder, *rest)
        for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
            if path.is_file():
                return path
    return None


@cache
def _imports(module: str, path: Path) -> list[str]:
    """The modules that a file names; the package itself stands for its core."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    try:
        tree = ast.parse(path.read_bytes(), path)
    except SyntaxError:  # the cell that imports it will say so
        return []
    names = {name for node in ast.walk(tree) for name in _named(node, package)}
    if _PACKAGE in names:
        names = (names - {_PACKAGE}) | set(_core())
    return [name for name in names if not _WITHOUT_EFFECT.fullmatch(name)]


def _named(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from _named_from(node, package)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        matched = _MODULE_NAME.match(node.value)  # "gradveil.module:name", as registries have it
        yield from [matched.group()] if matched else []


def _named_from(node: ast.ImportFrom, package: str) -> Iterator[str]:
    """`from a import b`: the module a.b if there is one, else where a has b from."""
    module = _absolute(node, package)
    for alias in node.names:
        inner = f"{module}.{alias.name}"
        yield inner if source_path(inner) is not None else _origin(module, alias.name)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1] if node.level else []
    return ".".join([*base, *([node.module] if node.module else [])])


def _origin(package: str, name: str) -> str:
    """The module that defines a name which a package of gradveil hands on; else the package.

    Packages of gradveil do nothing but hand names on, so what else they import does not matter.
    """
    if not package.startswith(f"{_PACKAGE}."):
        return package
    module = _handed_on(package).get(name)
    return package if module is None else _origin(module, name)


@cache
def _handed_on(package: str) -> dict[str, str]:
    """From which module a package has each name; nothing for a plain module."""
    path = source_path(package)
    if path is None or path.name != "__init__.py":
        return {}
    statements = ast.parse(path.read_bytes(), path).body
    imports = [each for each in statements if isinstance(each, ast.ImportFrom) and each.level == 1]
    return {
        alias.asname or alias.name: _absolute(each, package)
        for each in imports
        for alias in each.names
        if alias.asname in (None, alias.name)
    }


@cache
def _core() -> tuple[str, ...]:
    """The modules and packages directly below gradveil, but for those that build on it."""
    init = source_path(_PACKAGE)
    assert init is not None
    modules = [path.stem for path in init.parent.glob("_*.py") if path != init]
    packages = [path.parent.name for path in init.parent.glob("*/__init__.py")]
    return tuple(f"{_PACKAGE}.{name}" for name in [*modules, *packages] if name not in _OUTWARD)

"""A hash of the source files that a cell depends on: its function's, and those of what it names."""

from __future__ import annotations

import ast
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tokenize import COMMENT, tokenize

from ._named import entry_module, entry_text, is_registered, names_in_text

_PACKAGE = "gradveil"
_OUTWARD = ("auditing", "bench", "cli", "flower", "studies")
"""Sub-packages that `import gradveil` does not stand for: they build on the core."""
_WITHOUT_EFFECT = re.compile(r"gradveil\.studies(\.runner(\.\w+)*)?")
"""They hand cells on and keep what these find, and have no part in what that is."""
_MODULE_NAME = re.compile(r"gradveil(\.\w+)+(?=:|$)")
_CATALOG = "gradveil.catalog"
_REGISTRY = f"{_CATALOG}._entries"
"""Lists all that has a name. What a cell names of it counts; a further entry changes no result."""


@cache
def sources_hash(module: str, names: frozenset[str] = frozenset()) -> str:
    """The SHA-256 of all that a module depends on, and what is known by these names (`names_in`).

    Imports are read from the text, wherever they stand in it, without running anything. Docstrings,
    comments and empty lines do not count: a better sentence changes no result. Computed once in a
    process.
    """
    return hash_of(source_hashes(module, names))


def hash_of(hashes: Mapping[str, str]) -> str:
    """One hash of the hashes of `source_hashes`."""
    lines = "".join(f"{name} {own}\n" for name, own in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def source_hashes(module: str, names: Iterable[str] = ()) -> dict[str, str]:
    """The hash of each source: of a module's code, or of what the catalog says of a name."""
    return {source: _hash(source) for source in dependencies(module, names)}


@cache
def _hash(source: str) -> str:
    if is_registered(source):
        return hashlib.sha256(entry_text(source).encode()).hexdigest()
    path = source_path(source)
    assert path is not None
    return hashlib.sha256(code_of(path.read_bytes())).hexdigest()


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


def dependencies(module: str, names: Iterable[str] = ()) -> set[str]:
    """The module, what the names stand for, and what these import, directly or not.

    Only modules of gradveil and of the packages of those that were asked for are followed. Names of
    the catalog (``catalog:optimal-noise``) are among them.
    """
    found: set[str] = set()
    waiting = [module, *names]
    roots = {_PACKAGE, *(each.partition(".")[0] for each in waiting)}
    while waiting:
        source = waiting.pop()
        if source in found:
            continue
        if is_registered(source):
            found.add(source)
            waiting.append(entry_module(source))
        elif (path := source_path(source)) is not None:
            found.add(source)
            waiting += [each for each in _imports(source, path) if _root(each) in roots]
    return found


def _root(source: str) -> str:
    return _PACKAGE if is_registered(source) else source.partition(".")[0]


def source_path(module: str) -> Path | None:
    """The file of a module, found without importing it; None for other things."""
    top, *rest = module.split(".")
    try:
        spec = None if top in ("", "__main__") else find_spec(top)
    except ValueError:  # a module that was made at run time
        return None
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
    names = _with_registry(names) if _root(module) != _PACKAGE else names - {_REGISTRY}
    return [name for name in names if not _WITHOUT_EFFECT.fullmatch(name)]


def _with_registry(names: set[str]) -> set[str]:
    """A user's code that builds from texts may put them together: all that has a name counts."""
    builds = any(f"{name}.".startswith(f"{_CATALOG}.") for name in names)
    return names | {_REGISTRY} if builds else names


def _named(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from _named_from(node, package)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        matched = _MODULE_NAME.match(node.value)  # "gradveil.module:name", as registries have it
        yield from [matched.group()] if matched else names_in_text(node.value)


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
    imports = [each for each in statements if isinstance(each, ast.ImportFrom)]
    return {
        alias.asname or alias.name: _absolute(each, package)
        for each in imports
        for alias in each.names
        if alias.asname in (None, alias.name)
        and _absolute(each, package).startswith(f"{_PACKAGE}.")
    }


@cache
def _core() -> tuple[str, ...]:
    """The modules and packages directly below gradveil, but for those that build on it."""
    init = source_path(_PACKAGE)
    assert init is not None
    modules = [path.stem for path in init.parent.glob("_*.py") if path != init]
    packages = [path.parent.name for path in init.parent.glob("*/__init__.py")]
    return tuple(f"{_PACKAGE}.{name}" for name in [*modules, *packages] if name not in _OUTWARD)

"""A cell: one small computation of a study, named by all that it depends on."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

import gradveil
from gradveil._imports import check_function, import_object
from gradveil._suggest import suggestion

from ._named import names_in
from ._sources import sources_hash

Settings = Mapping[str, Any]
"""What a cell depends on: JSON (numbers, words, lists, dicts), with a seed if it draws."""

Value = float | int | str | bool | list[Any] | dict[str, Any] | Tensor | None
"""What a cell finds: JSON, or a tensor, which goes to a file of its own."""

CellFunction = Callable[[Settings], Mapping[str, Value]]

DATA_VARIABLE = "GRADVEIL_DATA"

_FUNCTIONS: dict[str, CellFunction] = {}


@dataclass(frozen=True, init=False)
class Cell:
    """A kind of computation and its settings; equal cells are one cell, whatever study asks.

    Args:
        kind: The name of a function registered with `cell_function`, or
            ``package.module:function`` for one of the user's.
        settings: JSON; the order of names does not matter, and a tuple is a list.

    >>> cell = Cell("attack", {"seed": 0, "ratio": 0.9})
    >>> cell == Cell("attack", {"ratio": 0.9, "seed": 0})
    True
    >>> cell.settings["ratio"]
    0.9
    """

    kind: str
    text: str

    def __init__(self, kind: str, settings: Settings) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "text", canonical_json(settings))

    @property
    def settings(self) -> Settings:
        """A fresh copy of the settings, as JSON gives them back."""
        return MappingProxyType(json.loads(self.text))

    @cached_property
    def identity(self) -> str:
        """The SHA-256 of kind, settings and package version."""
        return _identity(self, gradveil.__version__)

    @cached_property
    def key(self) -> str:
        """The SHA-256 of the identity and of the sources that the cell depends on."""
        return key_of(self, self.sources, gradveil.__version__)

    @property
    def sources(self) -> str:
        """The hash of the sources of its function, and of all that its settings name."""
        return sources_hash(module_of(self.kind), names_in(self.text))

    @property
    def is_current(self) -> bool:
        """Whether its key is that of the present sources; a store may have it of earlier ones."""
        return self.key == key_of(self, self.sources, gradveil.__version__)

    @classmethod
    def stored(cls, kind: str, text: str, key: str) -> Cell:
        """A cell under the key that a store has for it."""
        cell = cls(kind, json.loads(text))
        cell.__dict__["key"] = key
        return cell


def key_of(cell: Cell, sources: str, version: str) -> str:
    """The key of a cell whose function depends on sources with this hash, of this version."""
    return _sha256([_identity(cell, version), sources])


def _identity(cell: Cell, version: str) -> str:
    return _sha256([cell.kind, cell.text, version])


class Result(Mapping[str, Any]):
    """The result of one cell; tensors are read from their files when they are asked for.

    >>> Result({"mse": 0.5})["mse"]
    0.5
    """

    def __init__(
        self,
        values: Mapping[str, Value],
        arrays: Mapping[str, Callable[[], Tensor]] = MappingProxyType({}),
    ) -> None:
        self._values, self._arrays = dict(values), dict(arrays)

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]() if name in self._arrays else self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._values, *self._arrays])

    def __len__(self) -> int:
        return len(self._values) + len(self._arrays)

    @property
    def numbers(self) -> Mapping[str, Value]:
        """Everything but the tensors."""
        return MappingProxyType(self._values)

    def __repr__(self) -> str:
        return f"Result({self._values!r}, arrays={sorted(self._arrays)})"


def cell_function(kind: str) -> Callable[[CellFunction], CellFunction]:
    """Register the function that runs the cells of a kind.

    The function is pure: all it draws comes from generators seeded by its settings, all it reads
    is named by them, and two runs give the same bytes.

    >>> @cell_function("double")
    ... def double(settings):
    ...     return {"twice": 2 * settings["number"]}
    >>> double({"number": 4})
    {'twice': 8}
    """

    def register(function: CellFunction) -> CellFunction:
        _FUNCTIONS[kind] = function
        return function

    return register


def function_of(kind: str) -> CellFunction:
    """The function that runs cells of this kind."""
    if ":" in kind:
        what = "cell function"  # cells are made by a study's code, never read from a file
        function: CellFunction = import_object(kind, what, allow_imports=True, name="function")
        check_function(function, kind, what)
        return function
    importlib.import_module("gradveil.studies.cells")
    if kind not in _FUNCTIONS:
        raise ValueError(
            f"Parameter `kind` should be one of {sorted(_FUNCTIONS)} or `package.module:function`."
            f" Found {kind!r}.{suggestion(kind, _FUNCTIONS)}"
        )
    return _FUNCTIONS[kind]


def module_of(kind: str) -> str:
    """The module of the function that runs cells of this kind; "" if there is none."""
    if ":" in kind:
        return kind.partition(":")[0]
    importlib.import_module("gradveil.studies.cells")
    return _FUNCTIONS[kind].__module__ if kind in _FUNCTIONS else ""


def data_folder() -> Path | None:
    """Where the official data sets lie (``gradveil reproduce --data``), if the user said so.

    The folder is no part of a cell's key: settings name a data set whose content is fixed, and the
    folder only says where this machine keeps it.

    >>> data_folder() is None or data_folder().exists()
    True
    """
    folder = os.environ.get(DATA_VARIABLE)
    return Path(folder) if folder else None


def _sha256(value: object) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def canonical_json(value: object, *, allow_nan: bool = False) -> str:
    """One text for one value: sorted names, no spaces, the shortest exact floats."""
    plain = dict(value) if isinstance(value, Mapping) else value
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=allow_nan)

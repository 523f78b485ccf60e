"""Reading pickles of plain data without running code.

A pickle names functions to import and call, so loading one from somewhere else can do anything.
This reader resolves only the four names that arrays of numbers need and refuses every other.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def load_plain_pickle(path: Path) -> Any:
    """The containers, numbers, strings and numerical arrays pickled in `path`.

    Strings of Python 2 are returned as bytes. Everything but plain data raises a ValueError, and
    nothing of it is imported or called.
    """
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file, encoding="bytes").load()
    except _LOADING_ERRORS as error:
        raise ValueError(
            f"File `{path}` should be a pickle of plain data (numbers, strings, lists, "
            f"dictionaries, numerical arrays). Found `{error}`. Nothing of it was run; use a file "
            f"from the official source."
        ) from error


# What the pickle module documents ("other exceptions may also be raised") and damaged files raise.
_LOADING_ERRORS = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        import numpy as np

        array = np.zeros(1)
        allowed = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): _number_dtype,
            ("_codecs", "encode"): _encode_latin1,
        }
        for package in ("numpy.core", "numpy._core"):  # before and since NumPy 2
            allowed[f"{package}.multiarray", "_reconstruct"] = array.__reduce_ex__(2)[0]
            allowed[f"{package}.numeric", "_frombuffer"] = array.__reduce_ex__(5)[0]
        if (module_name, global_name) not in allowed:
            raise pickle.UnpicklingError(f"a reference to {module_name}.{global_name}, not allowed")
        return allowed[module_name, global_name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a persistent reference, not allowed")


def _number_dtype(name: str | bytes, align: object = False, copy: object = True) -> np.dtype[Any]:
    """`np.dtype` of numbers only.

    Old pickles give `align` as an integer, now deprecated. Always a copy, since unpickling sets
    the state of what is returned, which must not be NumPy's own.
    """
    import numpy as np

    dtype = np.dtype(name.decode() if isinstance(name, bytes) else name, bool(align), True)
    if dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"an array of {dtype}, not allowed")
    return dtype


def _encode_latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in protocols 0 to 2."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"text encoded as {encoding!r}, not allowed")
    return text.encode("latin1")

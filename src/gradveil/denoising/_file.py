"""Networks in files: arrays and a header in one `.npz`, without pickle."""

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gradveil._files import write_atomically
from gradveil._typing import Tensors

Made = TypeVar("Made")

_DAMAGES = (ValueError, KeyError, OSError, EOFError, TypeError, AttributeError, RuntimeError)


def write_archive(path: str | os.PathLike[str], header: dict[str, Any], arrays: Tensors) -> None:
    """Write the header and the arrays, all of it or nothing."""
    content = {name: tensor.detach().cpu().numpy() for name, tensor in arrays.items()}
    text = json.dumps({**header, "arrays": sorted(content)}).encode()
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(text, dtype=np.uint8), **content)  # type: ignore[arg-type]
    write_atomically(Path(path), buffer.getvalue())


def read_archive(
    path: str | os.PathLike[str], make: Callable[[dict[str, Any], dict[str, Tensor]], Made]
) -> Made:
    """What `make` makes of the header and the arrays that `write_archive` wrote."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            if sorted(archive.files) != sorted([*header.pop("arrays"), "header"]):
                raise ValueError("arrays are missing")
            arrays = {n: torch.from_numpy(archive[n]) for n in archive.files if n != "header"}
        return make(header, arrays)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"Parameter `path` should be a file that `save` wrote. Found that `{path}` does not"
            " exist."
        ) from None
    except (*_DAMAGES, zipfile.BadZipFile) as error:
        raise ValueError(
            f"File `{path}` should be one that `save` wrote. Found that it is not, or that it is"
            f" damaged ({error}). Fit and save again."
        ) from error

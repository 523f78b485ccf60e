"""Checkpoints of a training run, with checksums and a previous one to fall back on.

A file holds a line that names the format, the SHA-256 of the rest, the fingerprint of the run, and
what `torch.save` made of the state. It is written to a temporary name and renamed; the one before
it stays as ``checkpoint.previous``. Loading runs no code (`weights_only=True`).
"""

import hashlib
import io
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradveil._files import write_atomically

_FORMAT = b"gradveil checkpoint 1"
CURRENT, PREVIOUS, REFUSED = "checkpoint", "checkpoint.previous", "checkpoint.refused"


class CheckpointError(ValueError):
    """A checkpoint that cannot be continued from."""


@dataclass(frozen=True)
class Loaded:
    """A state, and what was wrong with the newer checkpoint that could not be used."""

    state: dict[str, Any]
    refused: str | None = None


def save_checkpoint(folder: Path, state: dict[str, Any], fingerprint: str) -> None:
    """Write the state; the checkpoint that was there becomes the previous one."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = fingerprint.encode() + b"\n" + buffer.getvalue()
    digest = hashlib.sha256(body).hexdigest().encode()
    current = folder / CURRENT
    if current.exists():
        os.replace(current, folder / PREVIOUS)
    write_atomically(current, b"\n".join((_FORMAT, digest, body)))


def has_checkpoint(folder: Path) -> bool:
    """Whether there is one to continue from, or at least to refuse."""
    return any((folder / name).exists() for name in (CURRENT, PREVIOUS))


def load_checkpoint(folder: Path, fingerprint: str) -> Loaded:
    """The newest good state. A refused newer one is moved to ``checkpoint.refused``.

    Raises:
        CheckpointError: If none is good, with the reason for each.
    """
    reasons: list[str] = []
    for name in (CURRENT, PREVIOUS):
        if not (folder / name).exists():
            continue
        try:
            state = read_checkpoint(folder / name, fingerprint)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        if reasons:
            os.replace(folder / CURRENT, folder / REFUSED)
        return Loaded(state, reasons[0] if reasons else None)
    raise CheckpointError(" ".join(reasons) or f"`{folder}` should hold a checkpoint. Found none.")


def read_checkpoint(path: Path, fingerprint: str) -> dict[str, Any]:
    """The state in one file, if it is whole and belongs to the run with this fingerprint."""
    parts = path.read_bytes().split(b"\n", 2)
    if len(parts) < 3 or parts[0] != _FORMAT:
        raise CheckpointError(
            f"`{path}` should be a checkpoint of gradveil. Found a file that is cut off at its"
            " start, or of another kind. It is not used."
        )
    if hashlib.sha256(parts[2]).hexdigest().encode() != parts[1]:
        raise CheckpointError(
            f"`{path}` should have the checksum that it states. Found another: it is truncated"
            " or damaged. It is not used."
        )
    stored, _, payload = parts[2].partition(b"\n")
    if stored != fingerprint.encode():
        raise CheckpointError(
            f"`{path}` should come from a run with this data, model, defense and settings. Found"
            " the fingerprint of another. Use the settings it was made with, or another folder."
        )
    try:
        state: dict[str, Any] = torch.load(
            io.BytesIO(payload), map_location="cpu", weights_only=True
        )
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"`{path}` should hold tensors, numbers and text. Found something else, which was not"
            " run. It is not used."
        ) from error
    return state

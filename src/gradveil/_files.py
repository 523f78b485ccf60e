"""Atomic file writes."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file such that a reader, or a crash at any moment, finds the old one or the new one.

    The content goes to a temporary file in the same folder, to the disk, and is then renamed. On
    an error (a full disk, say) the temporary file is removed and the old file stays.
    """
    data = content.encode() if isinstance(content, str) else content
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The process's umask; reading it means setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

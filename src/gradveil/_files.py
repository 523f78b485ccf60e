"""Atomic file writes, and locks that the operating system releases with their process."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt


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
        umask = os.umask(0)  # reading it means setting it
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep others that ask for the same out of a folder; the file ``.lock`` stays there, empty.

    Raises:
        BlockingIOError: If another holds the folder. It does not wait.
    """
    with (folder / ".lock").open("ab") as file:
        try:
            if fcntl is None:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            else:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # the second is how Windows says it
            raise BlockingIOError(
                f"Folder `{folder}` should be used by one run at a time. Found another at work in"
                " it. Wait for it to end, or choose another folder."
            ) from None
        yield

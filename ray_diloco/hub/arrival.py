"""A file that arrives: hashed while it streams, checked, and put in place at once or not at all."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ray_diloco.errors import TransientHubError


@contextlib.contextmanager
def replacing(destination: Path) -> Iterator[BinaryIO]:
    """A file: takes the place of ``destination`` when the block ends well, or vanishes."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".arriving-", dir=destination.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(name).replace(destination)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def receive(
    chunks: Iterable[bytes],
    destination: Path,
    *,
    path: str,
    size: int | None,
    sha256: str | None,
) -> str:
    """Write what arrives to ``destination`` and give its sha256.

    TransientHubError, and nothing at the destination, when the bytes are not those expected.
    """
    digest = hashlib.sha256()
    received = 0
    with replacing(destination) as file:
        for chunk in chunks:
            received += len(chunk)
            digest.update(chunk)
            file.write(chunk)
        if size is not None and received != size:
            raise TransientHubError(
                f"{path}: {received} bytes arrived, {size} were expected", "refused"
            )
        if sha256 is not None and digest.hexdigest() != sha256:
            raise TransientHubError(
                f"{path}: arrived damaged, its sha256 is not the one listed", "refused"
            )
    return digest.hexdigest()

"""A state folder has one user at a time, even when two processes were given the same one."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ray_diloco.errors import NodeInUseError


@contextmanager
def sole_use(folder: Path, *, node_id: str) -> Generator[None, None, None]:
    """Hold the folder. NodeInUseError when somebody does; the kernel lets go of what died."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise NodeInUseError(
            f"node id {node_id!r} is in use: another process on this machine has its state "
            f"folder {folder}"
        ) from None
    try:
        yield
    finally:
        os.close(fd)

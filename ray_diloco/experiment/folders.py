"""Folders that a run is to write to, tried before anything starts."""

import fcntl
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ray_diloco.errors import ConfigError


def require_writable(setting: str, folder: Path) -> None:
    """Make the folder, write to it, and take back whatever was made. ConfigError names the setting
    when that cannot be done.
    """
    missing = _missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise folder_error(setting, error, folder) from None
    finally:
        _remove_empty(missing)


@contextmanager
def held(setting: str, folder: Path) -> Generator[None, None, None]:
    """Make the folder, and keep out whoever else wants to hold it, in any process, until the
    context ends. What was made is taken back if nothing was put into it. ConfigError when somebody
    has it, or it cannot be made.

    The lock is the folder's own, so no file is left, and the kernel lets go of what died. A file
    system that cannot lock a folder (NFS) keeps nobody out.
    """
    missing = _missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        _remove_empty(missing)
        raise folder_error(setting, error, folder) from None
    try:
        if not _locked(handle):
            expected = "a run is under way in this folder; ray-diloco-status <it> shows it"
            raise ConfigError(setting, str(folder), expected)
        yield
    finally:
        os.close(handle)
        _remove_empty(missing)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _missing(folder: Path) -> list[Path]:
    """Those that would have to be made, the innermost first."""
    return [each for each in (folder, *folder.parents) if not each.exists()]


def _remove_empty(made: list[Path]) -> None:
    for each in made:
        if each.is_dir() and not any(each.iterdir()):
            each.rmdir()


def require_place(option: str, file: Path) -> None:
    """ConfigError when no file of that name can be, since its folder is missing, or it is one."""
    if file.is_dir() or not file.parent.is_dir():
        raise ConfigError(option, str(file), "expected a file in a folder that is there")


def folder_error(setting: str, error: OSError, folder: Path | None = None) -> ConfigError:
    """What to say of a folder that cannot be made or written to."""
    place = str(folder or error.filename)
    reason = error.strerror or type(error).__name__
    return ConfigError(setting, place, f"{reason}; expected a folder that can be written to")


def remove_if_empty(folder: Path) -> None:
    """A run that never began leaves no folder."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()

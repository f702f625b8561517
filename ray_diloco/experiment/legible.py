"""Files that a run or a sweep left, read for somebody who named a folder: what cannot be read, or
holds something else, is told with the name of the file and what was expected in it.

Every error from here is a `UsageError`.
"""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ray_diloco.errors import UsageError

Needs = Mapping[str, type]
"""What an object must have, and of which kind it must be; ``object``: any."""

_KINDS = {
    str: " that is a text",
    int: " that is a whole number",
    list: " that is a list",
    dict: " that is an object",
    object: "",
}
_OTHERWISE = (ValueError, TypeError, AttributeError, IndexError)


def mapping_of(path: Path, *, holds: str, needs: Needs | None = None) -> dict[str, Any]:
    """The object in a JSON file. ``holds``: what the file should hold, for the error."""
    with understood(path, holds=holds):
        return _mapping(path.read_text(encoding="utf-8"), needs or {}, "")


def lines_of(path: Path, *, holds: str, needs: Needs | None = None) -> Iterator[dict[str, Any]]:
    """The object on each line of a file, one after the other; a line that a crash cut short is left
    out.
    """
    with understood(path, holds=holds), path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.endswith("\n"):
                yield _mapping(line, needs or {}, f"line {number} ")


def settings_of(path: Path, *, holds: str) -> DictConfig:
    """The groups of settings in a YAML file."""
    with understood(path, holds=holds):
        found = OmegaConf.load(path)
        if not isinstance(found, DictConfig) or not found:
            raise _UnlikeError("holds no settings")
        for name, group in found.items():
            if not isinstance(group, DictConfig):
                raise _UnlikeError(f"has {name}={group}, which is no group of settings")
        return found


@contextmanager
def understood(path: Path, *, holds: str) -> Generator[None, None, None]:
    """What goes wrong inside is the file's fault: it was not written as it is read."""
    try:
        yield
    except OSError as error:
        raise _unfit(path, error.strerror or type(error).__name__, holds) from None
    except _UnlikeError as error:
        raise _unfit(path, str(error), holds) from None
    except UnicodeDecodeError:
        raise _unfit(path, "is no text", holds) from None
    except (OmegaConfBaseException, YAMLError) as error:
        raise _unfit(path, f"is no YAML ({_first_line(error)})", holds) from None
    except KeyError as error:
        raise _unfit(path, f"has no {error}", holds) from None
    except _OTHERWISE as error:
        raise _unfit(path, f"cannot be made sense of ({_first_line(error)})", holds) from None


def folder_fault(folder: Path) -> str:
    """Why a folder cannot hold anything, to stand before what was expected; "" when it could."""
    try:
        if not folder.exists():
            return "no such folder; "
        if not folder.is_dir():
            return "is no folder; "
        next(folder.iterdir(), None)
    except OSError as error:
        return f"{error.strerror}; "
    return ""


def is_file_in(folder: Path, *names: str) -> bool:
    """All of them are there; False for a folder that cannot be looked into, too."""
    try:
        return all((folder / name).is_file() for name in names)
    except OSError:
        return False


class _UnlikeError(ValueError):
    """The file holds something else; the message goes on from its name."""


def _mapping(text: str, needs: Needs, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _UnlikeError(f"{where}is no JSON ({_first_line(error)})") from None
    if not isinstance(found, dict):
        raise _UnlikeError(f"{where}is no JSON object")
    for name, kind in needs.items():
        if name not in found or not isinstance(found[name], kind):
            raise _UnlikeError(f"{where}has no {name!r}{_KINDS[kind]}")
    return found


def _unfit(path: Path, reason: str, holds: str) -> UsageError:
    return UsageError(f"{path}: {reason}; expected {holds}")


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__

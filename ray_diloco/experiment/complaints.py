"""From an error to the one line that a user gets for it."""

import difflib
import re

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from ray_diloco.errors import ContentError, HubError, RayDilocoError
from ray_diloco.experiment.reading import (
    NO_TOKENS,
    is_token_name,
    mask_tokens,
    nearest_setting,
)

USAGE = 2
FAILURE = 1


def complaint(error: BaseException) -> tuple[str, int] | None:
    """The line, free of tokens, and the exit code; None for an error that is our own fault."""
    line = _line(error)
    if line is None:
        return None
    code = FAILURE if isinstance(error, ContentError) else USAGE
    return mask_tokens(" ".join(line.split())), code


def _line(error: BaseException) -> str | None:
    match error:
        case HubError():
            return f"hub: {error}"
        case RayDilocoError():
            return str(error)
        case MissingConfigException():
            return _missing_file(error)
        case OverrideParseException():
            return f"{error.override!r}: expected group=file, group.setting=value or a flag"
        case OSError() if error.filename is not None:
            return f"{error.filename}: {error.strerror}; expected a folder that can be written to"
        case HydraException() | OmegaConfBaseException():
            return _composition(error)
        case _:
            return None


def _missing_file(error: MissingConfigException) -> str:
    """A group has no such file."""
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    options = [option for option in error.options or () if option]
    line = f"{group}={name}: expected one of {', '.join(options)}"
    close = difflib.get_close_matches(name, options, n=1)
    return f"{line}; did you mean {close[0]}?" if close else line


def _nearest(name: str) -> str:
    near = nearest_setting(name)
    if near.endswith(f"did you mean {name}?"):
        return (
            "the file that was chosen does not fill this in; put + in front: +group.setting=value"
        )
    return near


def _composition(error: BaseException) -> str:
    """A setting that is not there, or whatever else the composition found wrong."""
    cause = error.__cause__ or error
    setting = getattr(cause, "full_key", None)
    named = re.search(r"Could not override '([^'@]+)", str(error))
    if named or "not in struct" in str(cause):
        name = named[1] if named else str(setting)
        return f"{name}: {NO_TOKENS if is_token_name(name) else _nearest(name)}"
    reason = str(error).splitlines()[0]
    return f"{setting}: {reason}" if setting else reason

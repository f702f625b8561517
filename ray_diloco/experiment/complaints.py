"""From an error to the one line that a user gets for it."""

import difflib
import glob
import re
import sys
import traceback
from collections.abc import Iterable

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from ray_diloco.errors import ContentError, HubError, RayDilocoError, SweepError
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.names import nearest_setting
from ray_diloco.experiment.reading import NO_TOKENS, is_token_name
from ray_diloco.logs import mask_tokens

_NAME = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/-]*")
USAGE = 2
FAILURE = 1
INTERRUPTED = 130


def report(error: BaseException, *, program: str, debug: bool, own: Iterable[str] = ()) -> int:
    """Tell the user of a command about an error in one line that begins with its name, and give the
    exit code. With ``debug`` it comes with its traceback. ``own``: words that the command takes
    beside settings, which a typo may have meant.
    """
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write(f"{program}: interrupted\n")
        return INTERRUPTED
    if debug:
        traceback.print_exception(error)
    line, code = complaint(error, own) or (f"failed: {type(error).__name__}: {error}", FAILURE)
    sys.stderr.write(f"{program}: {mask_tokens(line)}\n")
    return code


def complaint(error: BaseException, own: Iterable[str] = ()) -> tuple[str, int] | None:
    """The line, free of tokens, and the exit code; None for an error that is our own fault."""
    line = _line(error, tuple(own))
    if line is None:
        return None
    failed = isinstance(error, ContentError) or (
        isinstance(error, SweepError) and not error.refused
    )
    code = FAILURE if failed else USAGE
    return mask_tokens(" ".join(line.split())), code


def _line(error: BaseException, own: tuple[str, ...]) -> str | None:
    match error:
        case HubError():
            return f"hub: {error}"
        case RayDilocoError():
            return str(error)
        case MissingConfigException():
            return _missing_file(error)
        case OverrideParseException():
            return _unreadable(str(error.override))
        case OSError() if error.filename is not None:
            return f"{error.filename}: {error.strerror}; expected a folder that can be written to"
        case HydraException() | OmegaConfBaseException():
            return _composition(error, own)
        case _:
            return None


def _missing_file(error: MissingConfigException) -> str:
    """A group has no such file."""
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    options = [option for option in error.options or () if option]
    line = f"{group}={name}: expected one of {', '.join(options)}"
    close = difflib.get_close_matches(name, options, n=1)
    return f"{line}; did you mean {close[0]}?" if close else line


def _unreadable(word: str) -> str:
    """A word that Hydra's grammar does not take; most often for a letter in its value."""
    name, equals, value = word.partition("=")
    if not equals or _NAME.fullmatch(name) is None:
        line = f"{word!r}: expected group=file, group.setting=value or a flag"
        files = sorted(conf_dir().glob(f"*/{glob.escape(name)}.yaml"))
        return f"{line}; did you mean {files[0].parent.name}={name}?" if files else line
    return (
        f"{name}={value}: cannot be read; expected brackets that close, and a value that is no "
        f"plain word in quotes within quotes, such as '{name}=\"ä, b\"'"
    )


def _nearest(name: str, own: tuple[str, ...]) -> str:
    near = nearest_setting(name, own)
    if near.endswith(f"did you mean {name}?"):
        return (
            "the file that was chosen does not fill this in; put + in front: +group.setting=value"
        )
    return near


def _composition(error: BaseException, own: tuple[str, ...]) -> str:
    """A setting that is not there, or whatever else the composition found wrong."""
    cause = error.__cause__ or error
    setting = getattr(cause, "full_key", None)
    named = re.search(r"Could not (?:override|delete from config\.) '([^'@=]+)", str(error))
    if named or "not in struct" in str(cause):
        name = named[1] if named else str(setting)
        return f"{name}: {NO_TOKENS if is_token_name(name) else _nearest(name, own)}"
    reason = str(error).splitlines()[0]
    if reason.startswith("Ambiguous value"):
        return f"{reason}: several values need -m (a sweep), a list brackets: [0.3,0.7]"
    return f"{setting}: {reason}" if setting else reason

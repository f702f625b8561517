"""One of a few names, and the nearest of them for a wrong one."""

import difflib
from collections.abc import Iterable

from ray_diloco.errors import ConfigError


def unknown_choice(setting: str, value: object, choices: Iterable[str]) -> ConfigError:
    """The error for a value that is none of ``choices``; names all of them and the nearest."""
    known = list(choices)
    return ConfigError(
        setting, value, f"expected one of {', '.join(known)}{did_you_mean(str(value), known)}"
    )


def require_choice(setting: str, value: str, choices: Iterable[str]) -> None:
    """ConfigError for a value that is none of ``choices``."""
    known = tuple(choices)
    if value not in known:
        raise unknown_choice(setting, value, known)


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """``; did you mean this?`` for the nearest name, "" when none is near. Case does not count."""
    by_small = {each.lower(): each for each in choices}
    close = difflib.get_close_matches(name.lower(), by_small, n=1)
    return f"; did you mean {by_small[close[0]]}?" if close else ""

"""The names of all settings, and the nearest one to a wrong name."""

import difflib
import functools
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, get_origin, get_type_hints

from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.schema import Config
from ray_diloco.experiment.sweep.settings import LauncherSettings


def all_settings() -> list[str]:
    """The dotted names of all settings, groups included."""
    groups = _groups()
    return [*groups, *(f"{group}.{key}" for group, keys in groups.items() for key in keys)]


@functools.cache
def open_settings() -> tuple[str, ...]:
    """The dotted names of settings that hold names of the user's own, such as ``hub.faults``."""
    return tuple(
        f"{group}.{key}"
        for group, keys in _groups().items()
        for key, kind in keys.items()
        if get_origin(kind) is dict
    )


@functools.cache
def _groups() -> dict[str, dict[str, Any]]:
    """The settings of each group and their types."""
    return {group: get_type_hints(kind) for group, kind in get_type_hints(Config).items()}


def nearest_setting(name: str, beside: Iterable[str] = ()) -> str:
    """A half sentence that proposes what exists for the name of a setting or a group that does not.
    ``beside``: other words without a dot that are taken.
    """
    dotted = "." in name
    known = [*all_settings(), *_HYDRAS] if dotted else [*all_groups(), *beside]
    known = [each for each in known if ("." in each) == dotted]
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    last = name.rsplit(".", 1)[-1]
    close += [each for each in known if each.rsplit(".", 1)[-1] == last and each not in close]
    if close:
        return f"no such setting; did you mean {' or '.join(close[:2])}?"
    group = name.rpartition(".")[0]
    within = [each.rpartition(".")[2] for each in known if each.startswith(f"{group}.")]
    return f"no such setting; expected one of {', '.join(within or [*all_groups(), *beside])}"


@functools.cache
def all_groups() -> tuple[str, ...]:
    """What ``group=file`` can choose of, Hydra's own groups included."""
    folders = {path.parent.relative_to(conf_dir()) for path in conf_dir().glob("*/**/*.yaml")}
    return tuple(sorted(each.as_posix() for each in folders))


_HYDRAS = (
    *("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.searchpath"),
    *(f"hydra.launcher.{each.name}" for each in fields(LauncherSettings)),
)
"""Its settings that a command line changes."""

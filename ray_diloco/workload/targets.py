"""The user's own parts by dotted name, from modules on an allow-list.

A configuration is data that people pass around; without the list it could call anything that is
importable.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.choices import did_you_mean


def find_target(setting: str, target: str, allowed: Sequence[str]) -> Callable[..., Any]:
    """The class or function that ``target`` names.

    Its name, and the module that defines it, must lie under one of the ``allowed`` prefixes (whole
    words between dots): so nothing is reached through a module that merely imports it. ConfigError
    names ``setting``.
    """
    _require_allowed(setting, target, target, allowed)
    found = _import(setting, target)
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        raise ConfigError(setting, target, "expected a class or a function")
    home = getattr(found, "__module__", None) or ""
    _require_allowed(setting, target, home, allowed)
    return found


def call_target(
    setting: str, custom: dict[str, Any], allowed: Sequence[str], *args: Any, **offered: Any
) -> Any:
    """Call ``custom["_target_"]`` with ``args``, its own arguments, and those of ``offered`` that
    its signature names.

    The configuration's own arguments win over offered ones. ConfigError when the arguments do not
    fit; what the target itself raises goes through.
    """
    target = find_target(f"{setting}._target_", custom["_target_"], allowed)
    arguments = {name: value for name, value in custom.items() if name != "_target_"}
    wanted = {name: offered[name] for name in accepted_names(target, tuple(offered))}
    try:
        inspect.signature(target).bind(*args, **(wanted | arguments))
    except TypeError as error:
        raise ConfigError(
            setting, custom, f"arguments that fit {custom['_target_']}: {error}"
        ) from None
    except ValueError:
        pass  # a builtin without a signature: only the call itself can tell
    return target(*args, **(wanted | arguments))


def first_line(error: BaseException) -> str:
    """Kind and first line of an error that the user's own code raised."""
    told = str(error).strip().splitlines()
    return f"{type(error).__name__}: {told[0][:200]}" if told else type(error).__name__


def accepted_names(target: Callable[..., Any], names: Sequence[str]) -> tuple[str, ...]:
    """Those of ``names`` that ``target`` takes as keyword arguments, by name (``**kwargs`` takes
    none).
    """
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:
        return ()
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(
        name for name in names if name in parameters and parameters[name].kind in by_keyword
    )


def _require_allowed(setting: str, target: str, name: str, allowed: Sequence[str]) -> None:
    if not any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed):
        group = setting.split(".")[0]
        known = ", ".join(allowed) or "none"
        raise ConfigError(
            setting,
            target,
            f"{name} is not under an allowed module ({known}); add it to {group}.allow_targets",
        )


def _import(setting: str, target: str) -> Any:
    """The longest importable module, then attributes: a class method has a class on its way."""
    words = target.split(".")
    for length in range(len(words) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(words[:length]))
        except ModuleNotFoundError as error:
            if error.name is not None and target.startswith(error.name):
                continue
            raise ConfigError(setting, target, f"cannot be imported: {error}") from error
        except (ImportError, ValueError) as error:
            raise ConfigError(setting, target, f"cannot be imported: {error}") from error
        return _attribute(setting, target, found, words[length:])
    raise ConfigError(setting, target, f"there is no module {words[0]!r}")


def _attribute(setting: str, target: str, found: Any, names: list[str]) -> Any:
    for name in names:
        if not hasattr(found, name):
            near = did_you_mean(name, [each for each in dir(found) if not each.startswith("_")])
            place = getattr(found, "__name__", type(found).__name__)
            raise ConfigError(setting, target, f"{place} has no {name!r}{near}")
        found = getattr(found, name)
    return found

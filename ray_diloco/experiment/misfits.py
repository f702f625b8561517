"""Why a configuration does not fit the schema: the setting, its value and what was expected."""

import re
from dataclasses import fields, is_dataclass
from typing import Any

from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.names import nearest_setting
from ray_diloco.protocol.choices import did_you_mean, unknown_choice
from ray_diloco.timing.profile import NodeProfile

_CHOICES = re.compile(r"[Ii]nvalid value .*expected one of \[(.*)\]")
_REASONS = (
    (r"could not be converted to Integer|type hint 'int'", "expected a whole number"),
    (r"could not be converted to Float|type hint 'float'", "expected a number"),
    (r"is not a valid bool|type hint 'bool'", "expected true or false"),
    (r"value 'None' for field of type 'int'", "expected a whole number, not null"),
    (r"value 'None' for field of type 'float'", "expected a number, not null"),
    (r"value 'None' for field of type 'bool'", "expected true or false, not null"),
    (r"value 'None' for field of type", "expected a value, not null"),
    (r"is not a ListConfig|cannot be assigned to ListConfig|to List\[", "expected a list: [a, b]"),
    (
        r"is not a DictConfig|to Dict\[|typing.Dict|subclass of NodeProfile",
        "expected names with their values: {name: value}",
    ),
    (
        r"cannot be converted to string|Cannot convert '\w+' to string|type hint 'str'",
        "expected a text",
    ),
)
"""What OmegaConf says, and what we say instead."""


def find_fault(schema: DictConfig, given: dict[str, Any]) -> ConfigError:
    """The first setting that does not merge, found by merging one after the other."""
    for number, profile in enumerate(profiles_in(given)):
        if isinstance(profile, dict):
            type_profile(f"cluster.profiles[{number}]", profile)
    for group, settings in given.items():
        if group not in schema:
            return ConfigError(group, _short(settings), nearest_setting(group))
        if not isinstance(settings, dict):
            return ConfigError(group, _short(settings), "expected a group of settings")
        for key, value in settings.items():
            try:
                OmegaConf.merge(schema[group], {key: value})
            except OmegaConfBaseException as error:
                return as_config_error(error, (f"{group}.{key}", value))
    raise AssertionError("all settings merge one by one, but not together")


def as_config_error(error: OmegaConfBaseException, place: tuple[str, Any] | None) -> ConfigError:
    setting, value = place or (str(error.full_key), None)
    inner = str(error.full_key or "")
    if isinstance(error, ConfigKeyError):
        if inner in ("", setting, setting.rsplit(".", 1)[-1]):
            return ConfigError(setting, _short(value), nearest_setting(setting))
        near = did_you_mean(inner, _fields_of(error))
        return ConfigError(setting, _short(value), f"no such field: {inner}{near}")
    reason = str(error).splitlines()[0]
    listed = _CHOICES.search(reason)
    if listed is not None:
        return unknown_choice(setting, value, listed[1].split(", "))
    if reason.startswith("Cannot merge"):
        reason = "is not a ListConfig" if isinstance(value, dict) else "is not a DictConfig"
    expected = [ours for theirs, ours in _REASONS if re.search(theirs, reason)]
    where = f" in {inner}" if inner != setting and inner.startswith(setting) else ""
    told = expected[0] + where if expected else reason[0].lower() + reason[1:]
    return ConfigError(setting, _short(value), told)


def _fields_of(error: OmegaConfBaseException) -> list[str]:
    kind = error.object_type
    return [each.name for each in fields(kind)] if kind and is_dataclass(kind) else []


def widen_stretches(profile: Any) -> None:
    """Whole numbers in ``away`` become floats, which OmegaConf does everywhere but in lists of
    lists.
    """
    away = profile.get("away") if isinstance(profile, dict) else None
    for stretch in away if isinstance(away, list) else ():
        if isinstance(stretch, list):
            stretch[:] = [float(each) if type(each) is int else each for each in stretch]


def profiles_in(given: dict[str, Any]) -> list[Any]:
    cluster = given.get("cluster")
    profiles = cluster.get("profiles") if isinstance(cluster, dict) else None
    return profiles if isinstance(profiles, list) else []


def type_profile(place: str, values: dict[str, Any]) -> None:
    """Fields of a node's profile, in place, as `NodeProfile` has them. ConfigError."""
    schema = OmegaConf.structured(NodeProfile)
    thaw(schema)
    widen_stretches(values)
    for name, value in values.items():
        try:
            merged = OmegaConf.merge(schema, {name: value})
        except ConfigKeyError:
            known = sorted(each.name for each in fields(NodeProfile))
            raise unknown_choice(place, name, known) from None
        except OmegaConfBaseException as error:
            raise as_config_error(error, (f"{place}.{name}", value)) from None
        values[name] = getattr(OmegaConf.to_object(merged), name)


def _short(value: Any) -> Any:
    """The value itself, or the beginning of its text when it is long."""
    text = repr(value)
    return value if len(text) <= 80 else f"{text[:77]}..."


def thaw(node: Container) -> None:
    """Frozen dataclasses become read-only nodes: make all of them writable."""
    OmegaConf.set_readonly(node, None)
    keys = node.keys() if isinstance(node, DictConfig) else range(len(node))  # pyright: ignore[reportArgumentType]
    for key in keys:
        child = node._get_node(key)  # pyright: ignore[reportArgumentType]
        if isinstance(child, DictConfig | ListConfig) and not child._is_none():
            thaw(child)

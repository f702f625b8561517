"""Whether settings that a program gives are of the kinds that they are declared with: files are
checked where they are read, an argument of a function is not.
"""

from dataclasses import fields
from enum import Enum
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ray_diloco.errors import ConfigError

_ALSO: dict[type, type] = {int: Integral, float: Real}
"""Numbers of NumPy count too."""
_SAID = {int: "a whole number", float: "a number", str: "text", bool: "True or False"}


def check_kinds(group: str, settings: Any) -> None:
    """ConfigError, as ``<group>.<field>``, for the first field of this dataclass whose value is of
    another kind. Fields that hold more than one value are not looked into.
    """
    kinds = get_type_hints(settings.__class__)
    for field in fields(settings):
        check_kind(f"{group}.{field.name}", getattr(settings, field.name), kinds[field.name])


def check_kind(name: str, value: Any, kind: Any) -> None:
    """ConfigError when what is called ``name`` is not of its kind, such as ``int | None``."""
    allowed = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    if not all(each in _SAID or each is NoneType or _is_choice(each) for each in allowed):
        return
    if any(_is(value, each) for each in allowed):
        return
    said = [_told(each) for each in allowed if each is not NoneType]
    if NoneType in allowed:
        said.append("null")
    raise ConfigError(name, value, f"expected {' or '.join(said)}")


def _is(value: Any, kind: type) -> bool:
    if kind is NoneType:
        return value is None
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, _ALSO.get(kind, kind))


def _is_choice(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _told(kind: type) -> str:
    return _SAID.get(kind) or f"a {kind.__name__}"

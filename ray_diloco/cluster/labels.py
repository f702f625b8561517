"""Label selectors as Ray has them: ``a``, ``!a``, ``in(a,b)``, ``!in(a,b)``. Pure."""

import re
from collections.abc import Mapping

from ray_diloco.errors import ConfigError

_SEVERAL = re.compile(r"in\((?P<values>[^()]*)\)")
_ONE = re.compile(r"[^!()\s,]+")


def fits_labels(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a machine with these labels is among those that the selector means; one without a
    label has no value of it, which ``!a`` and ``!in(a,b)`` allow.
    """
    return all(
        (labels.get(label) in _values(condition)) is not condition.startswith("!")
        for label, condition in selector.items()
    )


def require_conditions(setting: str, selector: Mapping[str, str]) -> None:
    """ConfigError for a condition that no selector has."""
    for label, condition in selector.items():
        if not _is_condition(condition):
            expected = "expected a value, !value, in(a,b) or !in(a,b)"
            raise ConfigError(setting, {label: condition}, expected)


def _is_condition(text: str) -> bool:
    plain = text.removeprefix("!")
    several = _SEVERAL.fullmatch(plain)
    return bool(_values(text)) if several is not None else bool(_ONE.fullmatch(plain))


def _values(condition: str) -> list[str]:
    plain = condition.removeprefix("!")
    several = _SEVERAL.fullmatch(plain)
    if several is None:
        return [plain]
    return [each for each in (text.strip() for text in several["values"].split(",")) if each]

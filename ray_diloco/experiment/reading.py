"""From what Hydra composed, or any nested mapping, to a typed `Config`."""

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, InterpolationResolutionError, OmegaConfBaseException

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.schema import Config

NO_TOKENS = "a token is never part of a configuration; set HF_TOKEN or use `hf auth login`"

_TOKEN_KEY = re.compile(r"(.*_)?(token|api_key|password|secret)", re.IGNORECASE)
_CONVERSION = re.compile(r"could not be converted to (\w+)")
_KINDS = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
_TOKEN_VALUE = re.compile(r"hf_[A-Za-z0-9_-]{20,}")


def read_config(composed: DictConfig | dict[str, Any]) -> Config:
    """The typed configuration, interpolations resolved.

    ConfigError for a token anywhere, a key that does not exist, and a value of a wrong type.
    """
    try:
        given: Any = OmegaConf.to_container(OmegaConf.create(composed), resolve=True)
    except InterpolationResolutionError as error:
        raise _as_config_error(error, None) from None
    refuse_tokens(given)
    schema = OmegaConf.structured(Config)
    _thaw(schema)
    try:
        merged = OmegaConf.merge(schema, given)
    except OmegaConfBaseException:
        raise _find_fault(schema, given) from None
    config = OmegaConf.to_object(merged)
    assert isinstance(config, Config)
    return config


def to_plain(config: Config) -> dict[str, Any]:
    """The configuration as nested plain values, for YAML, JSON and hashing."""
    plain = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    assert isinstance(plain, dict)
    return plain  # pyright: ignore[reportReturnType]


def to_yaml(config: Config) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(to_plain(config)))


def refuse_tokens(given: Any) -> None:
    """ConfigError, without the value, for anything that is a token by its name or its look."""
    for setting, value in _leaves(given, ""):
        named = is_token_name(setting) and value is not None
        if named or (isinstance(value, str) and _TOKEN_VALUE.search(value)):
            raise ConfigError(setting, "***", NO_TOKENS)


def refuse_token_words(words: Iterable[str]) -> None:
    """The same for the words of a command line, before anything is made of them."""
    for word in words:
        name, _, value = word.partition("=")
        name = name.lstrip("+~")
        named = is_token_name(name) and value not in ("", "null")
        if named or _TOKEN_VALUE.search(word):
            raise ConfigError(mask_tokens(name), "***", NO_TOKENS)


def is_token_name(setting: str) -> bool:
    """Whether the last word of a dotted name says that it is a secret."""
    return _TOKEN_KEY.fullmatch(setting.rsplit(".", 1)[-1]) is not None


def mask_tokens(text: str) -> str:
    """The text without anything that looks like a token."""
    return _TOKEN_VALUE.sub("hf_***", text)


def all_settings() -> list[str]:
    """The dotted names of all settings, groups included."""
    schema = OmegaConf.structured(Config)
    names = [str(group) for group in schema]
    return names + [f"{group}.{key}" for group in names for key in schema[group]]


def nearest_setting(name: str) -> str:
    """A half sentence that proposes existing settings for a name that does not exist."""
    known = [each for each in all_settings() if ("." in each) == ("." in name)]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    last = name.rsplit(".", 1)[-1]
    close += [each for each in known if each.rsplit(".", 1)[-1] == last and each not in close]
    if close:
        return f"no such setting; did you mean {' or '.join(close[:2])}?"
    group = name.split(".")[0]
    beside = [each.split(".")[1] for each in known if each.startswith(f"{group}.")]
    listed = ", ".join(beside or [each for each in all_settings() if "." not in each])
    return f"no such setting; expected one of {listed}"


def _find_fault(schema: DictConfig, given: dict[str, Any]) -> ConfigError:
    """The first setting that does not merge, found by merging one after the other."""
    for group, settings in given.items():
        if group not in schema:
            return ConfigError(group, _short(settings), nearest_setting(group))
        if not isinstance(settings, dict):
            return ConfigError(group, _short(settings), "expected a group of settings")
        for key, value in settings.items():
            try:
                OmegaConf.merge(schema[group], {key: value})
            except OmegaConfBaseException as error:
                return _as_config_error(error, (f"{group}.{key}", value))
    raise AssertionError("all settings merge one by one, but not together")


def _as_config_error(error: OmegaConfBaseException, place: tuple[str, Any] | None) -> ConfigError:
    setting, value = place or (str(error.full_key), None)
    inner = str(error.full_key or "")
    if isinstance(error, ConfigKeyError):
        if inner in ("", setting, setting.rsplit(".", 1)[-1]):
            return ConfigError(setting, _short(value), nearest_setting(setting))
        return ConfigError(setting, _short(value), f"no such field: {inner}")
    reason = str(error).splitlines()[0]
    kind = _CONVERSION.search(reason)
    if kind is not None:
        return ConfigError(setting, _short(value), f"expected {_KINDS.get(kind[1], kind[1])}")
    return ConfigError(setting, _short(value), reason[0].lower() + reason[1:])


def _short(value: Any) -> Any:
    """The value itself, or the beginning of its text when it is long."""
    text = repr(value)
    return value if len(text) <= 80 else f"{text[:77]}..."


def _thaw(node: Container) -> None:
    """Frozen dataclasses become read-only nodes: make all of them writable."""
    OmegaConf.set_readonly(node, None)
    keys = node.keys() if isinstance(node, DictConfig) else range(len(node))  # pyright: ignore[reportArgumentType]
    for key in keys:
        child = node._get_node(key)  # pyright: ignore[reportArgumentType]
        if isinstance(child, DictConfig | ListConfig) and not child._is_none():
            _thaw(child)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All values that are no containers, with their dotted names."""
    match value:
        case dict():
            for key, each in value.items():
                yield from _leaves(each, f"{path}.{key}" if path else str(key))
        case list():
            for index, each in enumerate(value):
                yield from _leaves(each, f"{path}[{index}]")
        case _:
            yield path, value

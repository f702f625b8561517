"""From what Hydra composed, or any nested mapping, to a typed `Config`."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.misfits import (
    as_config_error,
    find_fault,
    profiles_in,
    thaw,
    type_profile,
    widen_stretches,
)
from ray_diloco.experiment.schema import Config
from ray_diloco.logs import TOKEN, mask_tokens

NO_TOKENS = "a token is never part of a configuration; set HF_TOKEN or use `hf auth login`"

_TOKEN_KEY = re.compile(r"(.*_)?(token|api_key|password|secret)", re.IGNORECASE)


def read_config(composed: DictConfig | dict[str, Any]) -> Config:
    """The typed configuration, interpolations resolved.

    ConfigError for a token anywhere, a key that does not exist, and a value of a wrong type.
    """
    try:
        given: Any = OmegaConf.to_container(OmegaConf.create(composed), resolve=True)
    except InterpolationResolutionError as error:
        raise as_config_error(error, None) from None
    refuse_tokens(given)
    schema = OmegaConf.structured(Config)
    thaw(schema)
    try:
        for profile in profiles_in(given):
            widen_stretches(profile)
        merged = OmegaConf.merge(schema, given)
    except OmegaConfBaseException:
        raise find_fault(schema, given) from None
    config = OmegaConf.to_object(merged)
    assert isinstance(config, Config)
    for node_id, values in config.cluster.overrides.items():
        type_profile(f"cluster.overrides.{node_id}", values)
    return config


def require_groups(composed: DictConfig) -> None:
    """ConfigError when ``run`` is no group of settings."""
    if not isinstance(composed.get("run"), DictConfig):
        raise ConfigError("run", composed.get("run"), "expected a group of settings")


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
        if named or (isinstance(value, str) and TOKEN.search(value)):
            raise ConfigError(setting, "***", NO_TOKENS)


def refuse_token_words(words: Iterable[str]) -> None:
    """The same for the words of a command line, before anything is made of them."""
    for word in words:
        name, _, value = word.partition("=")
        name = name.lstrip("+~")
        named = is_token_name(name) and value not in ("", "null")
        if named or TOKEN.search(word):
            raise ConfigError(mask_tokens(name), "***", NO_TOKENS)


def is_token_name(setting: str) -> bool:
    """Whether the last word of a dotted name says that it is a secret."""
    return _TOKEN_KEY.fullmatch(setting.rsplit(".", 1)[-1]) is not None


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

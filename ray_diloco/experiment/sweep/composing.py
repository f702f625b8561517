"""From a trial's overrides to its configuration, as Hydra composes it but much faster.

Composing takes Hydra 0.3 s. Most trials of a sweep differ in single settings only, which Hydra
applies after everything else: so each combination of chosen files is composed once, and single
settings are applied to a copy.
"""

import copy
from collections.abc import Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

OF_ALL = ("sweep", "search")
"""Groups of settings that say nothing of a single trial."""


class Composer:
    """Composes trials of one sweep. ``master``: what the command line composes to as a whole."""

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self._loader = loader
        self._master = master
        self._parser = OverridesParser.create(config_loader=loader)
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def parse(self, words: Sequence[str]) -> list[Override]:
        return self._parser.parse_overrides(list(words))

    def compose(self, overrides: Sequence[Override]) -> DictConfig:
        """The configuration with its ``hydra`` node. Errors of Hydra for what cannot be."""
        late = [each for each in overrides if _is_single_setting(each)]
        if any(each.get_key_element()[0] in "+~" for each in overrides):
            late = []  # what is added or deleted may meet single settings in any order
        chosen = tuple(str(each.input_line) for each in overrides if each not in late)
        config = copy.deepcopy(self._base(chosen))
        try:
            for each in late:
                OmegaConf.update(config, each.key_or_group, each.value(), merge=True)
        except OmegaConfBaseException:
            return self._load([str(each.input_line) for each in overrides])  # says what is wrong
        return config

    def _base(self, chosen: tuple[str, ...]) -> DictConfig:
        if chosen not in self._composed:
            self._composed[chosen] = self._load(list(chosen))
        return self._composed[chosen]

    def _load(self, words: list[str]) -> DictConfig:
        return self._loader.load_sweep_config(self._master, words)


def settings_of(overrides: Sequence[Override]) -> dict[str, Any]:
    """Each override's setting or group with its value; those of Hydra and of the sweep itself are
    left out.
    """
    return {
        key: plain(each.value())
        for each in overrides
        if not each.is_hydra_override()
        and (key := each.get_key_element().lstrip("+")).split(".")[0] not in OF_ALL
    }


def plain(value: Any) -> Any:
    """The value as JSON has it."""
    match value:
        case None | bool() | int() | float():
            return value
        case list():
            return [plain(each) for each in value]
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case _:
            return str(value)


def choices_of(composed: DictConfig) -> dict[str, str]:
    """The file that was chosen of each of our groups; None is left out."""
    chosen = OmegaConf.to_container(composed.hydra.runtime.choices)
    assert isinstance(chosen, dict)
    return {
        str(group): str(name)
        for group, name in chosen.items()
        if name is not None and not str(group).startswith("hydra/") and "@" not in str(group)
    }


def _is_single_setting(override: Override) -> bool:
    """``group.setting=value`` of ours, which changes no other choice."""
    key = override.get_key_element()
    return "." in key and key[0] not in "+~" and not override.is_hydra_override()

"""The words of a command line as a user means them, before Hydra reads them."""

from collections.abc import Iterable

from ray_diloco.errors import UsageError
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.names import all_settings, open_settings
from ray_diloco.protocol.choices import did_you_mean

_ALONE = ("run.role=single", "cluster=single")
_FLAGS = (
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--info"),
    *("--multirun", "--shell-completion", "--config-path", "--config-name", "--config-dir"),
    "--experimental-rerun",
)
"""Hydra's."""
_COUNTS = ("cluster.nodes", "cluster.node_ids")


def as_meant(words: Iterable[str]) -> list[str]:
    """The same words, with ``++`` before names of the user's own (``hub.faults.reset=0.1``), which
    no file has yet, and with one node for a run or cluster that is single, whatever an experiment
    says, unless the words say how many. UsageError for a word without a name.
    """
    words = list(words)
    for word in words:
        name, equals, value = word.partition("=")
        if equals and not name:
            raise UsageError(f"{word!r}: expected group=file, group.setting=value or a flag")
        if name.startswith("--"):
            _require_flag(name, value)
        if equals and value in ("", "null") and name != "run" and not {".", "/"} & set(name):
            raise UsageError(f"{word!r}: expected the name of one of its files")
    meant = [_opened(word) for word in words]
    counted = any(_name(word).lstrip("+") in _COUNTS for word in meant)
    single = [number for number, word in enumerate(meant) if word in _ALONE]
    if single and not counted:
        meant.insert(single[0] + 1, "cluster.nodes=1")
    return meant


def _require_flag(name: str, value: str) -> None:
    """UsageError for a word with dashes that is none of the flags, nor the beginning of one."""
    meant = name[2:].replace("-", "_")
    if (conf_dir() / meant).is_dir():
        raise UsageError(f"{name!r}: expected no dashes: {meant}={value or '<file>'}")
    if any(flag.startswith(name) for flag in _FLAGS):
        return
    settings = [each for each in all_settings() if each.rpartition(".")[2] == meant]
    if settings:
        raise UsageError(f"{name!r}: expected no dashes: {settings[0]}={value or '<value>'}")
    raise UsageError(f"{name!r}: expected a flag of --hydra-help{did_you_mean(name, _FLAGS)}")


def _opened(word: str) -> str:
    name = _name(word)
    if (
        "=" not in word
        or "." not in name
        or not any(name == setting or name.startswith(f"{setting}.") for setting in open_settings())
    ):
        return word
    return f"++{word}"


def _name(word: str) -> str:
    return word.split("=", 1)[0]

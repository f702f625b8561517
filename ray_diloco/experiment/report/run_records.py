"""What a run folder holds, as far as the run has come."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.events import read_events
from ray_diloco.experiment.legible import folder_fault, is_file_in, mapping_of, settings_of
from ray_diloco.experiment.run_files import CONFIG, EVENTS, RESULT
from ray_diloco.protocol.run import Event

_OF_A_RESULT = {
    "status": str,
    **dict.fromkeys(("nodes", "failures", "crashes"), dict),
    **dict.fromkeys(("tokens", "bytes_up", "bytes_down", "commits"), int),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """One run. ``result`` is None while it goes on, or when it broke off."""

    folder: Path
    config: dict[str, Any]
    """config.yaml as nested plain values."""
    result: dict[str, Any] | None
    events: list[Event]
    """In the order of the run's time."""

    @property
    def title(self) -> str:
        """The run's id, or the folder's name."""
        return self.config.get("run", {}).get("run_id") or self.folder.name

    @property
    def virtual(self) -> bool:
        """The run's time is simulated."""
        return self.config.get("time", {}).get("kind") == "virtual"

    @property
    def status(self) -> str:
        return self.result["status"] if self.result is not None else "running"

    def named(self, *names: str) -> list[Event]:
        """The events of these names."""
        return [event for event in self.events if event["event"] in names]


def is_run_folder(folder: Path) -> bool:
    return is_file_in(folder, CONFIG, EVENTS)


def read_run(folder: Path) -> RunRecords:
    """ConfigError when the folder holds no run, UsageError when one of its files is broken."""
    if not is_run_folder(folder):
        expected = f"{folder_fault(folder)}expected a run folder, with {CONFIG}, {EVENTS}"
        raise ConfigError("folder", str(folder), expected)
    events = sorted(read_events(folder / EVENTS), key=lambda event: event["at"])
    return RunRecords(folder=folder, config=_config(folder), result=_result(folder), events=events)


def _config(folder: Path) -> dict[str, Any]:
    found = OmegaConf.to_container(settings_of(folder / CONFIG, holds="the configuration of a run"))
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}


def _result(folder: Path) -> dict[str, Any] | None:
    path = folder / RESULT
    if not path.is_file():
        return None
    return mapping_of(path, holds="the result of a run", needs=_OF_A_RESULT)

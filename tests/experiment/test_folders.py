from pathlib import Path

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.folders import held


def test_a_held_folder_is_free_again_once_its_holder_is_done(tmp_path: Path) -> None:
    for _ in range(2):
        with held("hydra.run.dir", tmp_path):
            with pytest.raises(ConfigError, match="under way"), held("hydra.run.dir", tmp_path):
                pass
            (tmp_path / "record").touch()
    assert [each.name for each in tmp_path.iterdir()] == ["record"]


def test_a_folder_made_to_be_held_goes_when_nothing_came_into_it(tmp_path: Path) -> None:
    with held("hydra.run.dir", tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert not any(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_told_by_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"hydra\.run\.dir.*file"),
        held("hydra.run.dir", tmp_path / "file" / "run"),
    ):
        pass

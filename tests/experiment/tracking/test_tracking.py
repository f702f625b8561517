import sys

import pytest
from scripted import ScriptedEngine, ScriptedStage

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.run import run
from ray_diloco.experiment.run_files import TRACKED_AS
from ray_diloco.experiment.tracking.opening import tracking
from ray_diloco.experiment.tracking.settings import TrackerName, TrackingSettings

SERVICES = [each.value for each in TrackerName if each is not TrackerName.none]


@pytest.mark.parametrize("service", SERVICES)
def test_a_package_that_is_missing_is_named_before_anything_starts(
    small, tmp_path, monkeypatch, service
):
    monkeypatch.setitem(sys.modules, service, None)
    stage = ScriptedStage(ScriptedEngine())
    with pytest.raises(ConfigError, match=f"needs the package {service}") as caught:
        run(small(f"tracking={service}"), tmp_path / "run", stage=stage)
    assert f"pip install 'ray-diloco[{service}]'" in str(caught.value)
    assert (caught.value.setting, caught.value.value) == ("tracking.name", service)
    assert stage.entered == []
    assert not (tmp_path / "run").exists()


def test_a_project_without_a_name_is_refused():
    with pytest.raises(ConfigError, match=r"tracking.project=' ': expected a name"):
        TrackingSettings(project=" ").check()


def test_a_run_tells_no_service_unless_it_is_asked_to(small, tmp_path):
    with tracking(small(), tmp_path, run_id="r") as tracker:
        assert tracker is None
    run(small(), tmp_path / "run", stage=ScriptedStage(ScriptedEngine()))
    assert not (tmp_path / "run" / TRACKED_AS).exists()

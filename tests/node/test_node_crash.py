"""A node that was killed, wherever it was, has neither lost nor doubled a local step."""

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from killed_node import POINTS, Place, live
from node_scene import RUN_ID, SETTINGS, net

from ray_diloco.experiment.range_sum import check_range_sum
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.entrance import ensure_repository
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubSettings
from ray_diloco.master.build import Prepared, build_master
from ray_diloco.master.plan import MasterPlan
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.run import MasterReport, NodeReport, RunIdentity, RunLimits
from ray_diloco.tensors.schema import StateSchema
from ray_diloco.timing.wall import WallPort
from ray_diloco.workload.settings import DataSettings, ModelSettings

STEPS = 22
QUICK = replace(SETTINGS, poll_interval=0.05, node_timeout=60.0)


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[EmbeddedHub]:
    with EmbeddedHub(tmp_path_factory.mktemp("hub")) as served:
        yield served


@pytest.fixture
def place(hub, request) -> Place:
    name = f"local/run-{abs(hash(request.node.name))}"
    repo_id = ensure_repository(endpoint=hub.endpoint, token=hub.token, repo_id=name)
    return Place(endpoint=hub.endpoint, token=hub.token.reveal(), repo_id=repo_id)


@pytest.fixture
def master(place, tmp_path) -> Iterator[Callable[[], MasterReport]]:
    """The real master, which leads until the node has said goodbye; gives its report."""
    model = net()
    plan = MasterPlan(
        master_id="m",
        expected=("n0",),
        resume=False,
        run=RunIdentity(run_id=RUN_ID, config_hash="0" * 64, seed=0),
        limits=RunLimits(),
        diloco=QUICK,
        model=ModelSettings(),
        data=DataSettings(),
        hub=HubSettings(),
        endpoint=place.endpoint,
        token=Secret(place.token),
        repo_id=place.repo_id,
        state_dir=tmp_path / "master",
        threads=1,
        device="cpu",
    )
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    prepared = Prepared(initial=initial, schema=StateSchema.of(model), evaluator=None)
    leading = build_master(plan, prepared, port=WallPort(), record=lambda *_, **__: None)
    reports: list[MasterReport] = []
    thread = threading.Thread(target=lambda: reports.append(leading.run()), daemon=True)
    thread.start()

    def report() -> MasterReport:
        thread.join(30)
        return reports[0]

    yield report
    leading.stop("the test is over")
    thread.join(30)


def assert_every_step_counts_once(node: NodeReport | None, master: MasterReport) -> None:
    assert node is not None
    assert check_range_sum((node,), master) == []
    assert (node.dropped, node.unsent, node.unresolved) == ("", "", "")
    covered = StepRanges()
    for account in master.accounts["n0"].values():
        merged = StepRanges.parse(account["merged"])
        assert not merged.overlap(covered)
        covered = covered.union(merged)
    if node.first_step == 0:  # it went on from its checkpoint
        assert covered == StepRanges.of(1, STEPS).minus(StepRanges.parse(node.lost))


def killed(place: Place, folder: Path, **options: Any) -> None:
    code, _ = live(place, folder, settings=QUICK, steps=STEPS, **options)
    assert code == -signal.SIGKILL


def test_a_killed_node_goes_on_and_every_step_counts_once(place, master, tmp_path):
    killed(place, tmp_path / "n0", point="after the delta landed", time=2)
    code, report = live(place, tmp_path / "n0", settings=QUICK, steps=STEPS)
    assert code == 0
    assert_every_step_counts_once(report, master())


@pytest.mark.slow
@pytest.mark.parametrize("time", [1, 3])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("point", [p for p in POINTS if "claim" not in p and "goodbye" not in p])
def test_so_does_one_killed_anywhere(point, time, asynchronous, place, master, tmp_path):
    settings = replace(QUICK, async_delta_upload=asynchronous, async_global_poll=asynchronous)
    options = {"settings": settings, "steps": STEPS}
    live(place, tmp_path / "n0", point=point, time=time, **options)
    code, report = live(place, tmp_path / "n0", **options)
    assert code == 0
    assert_every_step_counts_once(report, master())


@pytest.mark.slow
def test_so_does_one_killed_at_every_point_in_turn(place, master, tmp_path):
    for point in POINTS[:-1]:
        live(place, tmp_path / "n0", point=point, settings=QUICK, steps=STEPS)
    code, report = live(place, tmp_path / "n0", settings=QUICK, steps=STEPS)
    assert code == 0
    assert_every_step_counts_once(report, master())


@pytest.mark.slow
@pytest.mark.parametrize("install", ["boundary", "replace"])
@pytest.mark.parametrize("point", ["after the delta landed", "after installing"])
def test_so_does_one_that_replaces(point, install, place, master, tmp_path):
    options = {"settings": replace(QUICK, install=install), "steps": STEPS}
    live(place, tmp_path / "n0", point=point, time=2, **options)
    code, report = live(place, tmp_path / "n0", **options)
    assert code == 0
    assert report is not None
    assert check_range_sum((report,), master()) == []

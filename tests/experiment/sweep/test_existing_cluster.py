"""Sweeps on Ray clusters that were there before."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from sweeps import lasting_ray, on, rows_of, swept

from ray_diloco.experiment.sweep.rows import Status, latest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@contextmanager
def joined(address: str) -> Generator[None, None, None]:
    """While it lasts, `state` says what is on the cluster: an actor of somebody else too."""
    import ray

    gc.collect()  # handles of an earlier Ray: those of the new one may have the same ids
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")

    @ray.remote(num_cpus=0)
    class Theirs:
        def ready(self) -> bool:
            return True

    try:
        theirs = Theirs.remote()
        ray.get(theirs.ready.remote())
        yield
    finally:
        ray.shutdown()


def state() -> dict:
    """Living actors, living placement groups, and what is free."""
    import ray
    from ray.util import placement_group_table

    free = ray.available_resources()
    return {
        "actors": sorted(living_actors()),
        "groups": sorted(
            key for key, each in placement_group_table().items() if each["state"] != "REMOVED"
        ),
        "free": {name: free.get(name) for name in ("CPU", "memory")},
    }


def living_actors() -> dict[str, dict]:
    from ray._private.state import actors

    return {key: each for key, each in actors().items() if each["State"] != "DEAD"}


def test_a_sweep_leaves_a_cluster_as_it_was(ray_of_all, tmp_path):
    with joined(ray_of_all):
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        theirs = placement_group([{"CPU": 1}])
        ray.get(theirs.ready())
        before = state()
        words = ("engine=inproc,ray", "time=virtual", "run.seed=0")
        with swept(*on(ray_of_all), *words, folder=tmp_path) as sweep:
            sweep.until(lambda: state()["actors"] != before["actors"])
            sweep.until(lambda: state()["groups"] != before["groups"])
            assert sweep.end() == 0, sweep.output
            left = state()
        remove_placement_group(theirs)
    assert {row.status for row in latest(rows_of(tmp_path))} == {Status.done}
    assert left == before


def test_a_sweep_uses_every_machine_of_a_cluster_and_leaves_nothing_there(tmp_path):
    machines: set[str] = set()

    def all_machines_work() -> bool:
        for key, each in living_actors().items():
            if each["State"] == "ALIVE" and key not in before["actors"]:
                machines.add(each["Address"]["NodeID"])
        return len(machines) == 2

    with lasting_ray(tmp_path, 1, 1) as address, joined(address):
        before = state()
        words = (f"ray.address={address}", "time=virtual", "engine=inproc,ray", "run.seed=0,1")
        with swept(*words, folder=tmp_path) as sweep:
            sweep.until(all_machines_work)
            assert sweep.end() == 0, sweep.output
            assert state() == before
    rows = latest(rows_of(tmp_path))
    assert [(row.status, row.folder) for row in rows] == [
        (Status.done, str(trial)) for trial in range(4)
    ]
    for row in rows:
        assert (tmp_path / "sweep" / row.folder / "result.json").exists()
    assert len({row.numbers["trace_hash"] for row in rows}) == 2

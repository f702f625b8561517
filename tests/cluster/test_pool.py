"""Workers that are used again, on a real Ray."""

import os
from pathlib import Path

import pool_work
import pytest

from ray_diloco.cluster.capacity import free_capacity
from ray_diloco.cluster.pool import Ended, WorkerPool
from ray_diloco.cluster.ray_session import ray_session
from ray_diloco.cluster.settings import RaySettings

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ray_of_two_cpus():
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_AUTH_MODE", "disabled")
        environment.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        with ray_session(RaySettings(num_cpus=2)):
            yield


@pytest.fixture
def pool(ray_of_two_cpus):
    opened = WorkerPool(preload=("json",))
    yield opened
    opened.close()


def end(pool: WorkerPool) -> Ended:
    while True:
        _, ended = pool.wait(1.0)
        if ended:
            return ended[0]


def done(pool: WorkerPool, ticket: int, work, **size) -> Ended:
    """Start it, wait for its end, and let its worker go on after what it returned."""
    pool.start(ticket, work, (), **({"cpus": 1.0} | size))
    ended = end(pool)
    assert ended.ticket == ticket
    pool.free(ticket, reuse=ended.fate == "returned")
    return ended


def test_a_worker_is_used_again_unless_its_work_went_wrong(pool):
    first, second = (done(pool, ticket, pool_work.place).value[0] for ticket in (1, 2))
    assert first == second
    failed = done(pool, 3, pool_work.fail)
    assert (failed.fate, str(failed.error)) == ("raised", "it goes wrong")
    third = done(pool, 4, pool_work.place).value[0]
    assert third != first
    died = done(pool, 5, pool_work.die)
    assert (died.fate, died.value) == ("died", None)
    assert done(pool, 6, pool_work.place).value[0] not in (first, third)


def test_a_worker_of_another_size_makes_room_first(pool):
    one = done(pool, 1, pool_work.place).value[0]
    two = done(pool, 2, pool_work.place, cpus=2.0).value[0]
    assert one != two


def test_work_without_a_cpu_gets_the_placement_group_that_it_asks_for(pool):
    assert done(pool, 1, pool_work.place, cpus=0.0, bundles=[{"CPU": 1.0}] * 2).value[1]
    assert not done(pool, 2, pool_work.place, cpus=0.0).value[1]


def test_running_work_tells_and_can_be_asked_to_end(pool):
    pool.start(1, pool_work.talk, (), cpus=1.0)
    begun: list[int] = []
    while not begun:
        begun, _ = pool.wait(1.0)
    assert begun == [1]
    told: list[str] = []
    while not told:
        told = pool.told([1])[1]
    assert told == ["well begun"]
    pool.stop(1, "enough")
    assert end(pool).value == "enough"


def test_a_closed_pool_holds_nothing(ray_of_two_cpus):
    pool = WorkerPool()
    pool.start(1, pool_work.talk, (), cpus=0.0, bundles=[{"CPU": 2.0}])
    while not pool.wait(1.0)[0]:
        pass
    assert free_capacity().cpus == 0.0
    pool.close()
    pool.close()
    while free_capacity().cpus < 2.0:
        pass
    assert free_capacity().largest == 2.0

"""A Ray cluster of several machines, as far as one can be that: raylets, an address each."""

import contextlib
import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager

import psutil
import pytest
from end_to_end.programs import END_SECONDS

ACTORS = ("_NodeActor", "_MasterActor", "_HubActor", "_ClockActor")
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 6,
}
"""A machine that has gone is noticed after 3 s, not 16."""


OTHERS = {"b": "127.0.0.2", "c": "127.0.0.3"}
"""The machines beside the head, by their label ``kind``."""


class Machines:
    """The head, and those of ``OTHERS`` unless it is ``alone``. ``dashboard``: of the head, which
    takes jobs.
    """

    def __init__(self, *, alone: bool = False, dashboard: bool = False) -> None:
        from ray.cluster_utils import Cluster  # slow to import, and only where Ray is used

        # A Ray of another test may be up on this machine. Agents take one fixed port unless told,
        # and one that finds it taken starts no job, without a word; a dashboard looks for another
        # port only when it was given none.
        common = {
            "object_store_memory": 78_643_200,
            "num_cpus": 1,
            "dashboard_agent_listen_port": 0,
        }
        head = {"labels": {"kind": "head"}, "include_dashboard": dashboard, "dashboard_port": None}
        self._common = common
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args=common | head | {"_system_config": QUICK_TO_NOTICE},
        )
        self._nodes = {"head": self._cluster.head_node}
        if not alone:
            self.make_whole()

    @property
    def address(self) -> str:
        return self._cluster.address

    @property
    def dashboard(self) -> str:
        return f"http://{self._cluster.webui_url}"

    def add(self, name: str, address: str, **options: object) -> None:
        """One that is there when this returns."""
        self._add(name, address, **options)
        self._cluster.wait_for_nodes()

    def make_whole(self) -> None:
        """With those of ``OTHERS`` and no more."""
        for name in self._nodes.keys() - OTHERS.keys() - {"head"}:
            self.kill(name)
        for name in sorted(OTHERS.keys() - self._nodes.keys()):
            self._add(name, OTHERS[name])
        self._cluster.wait_for_nodes()

    def kill(self, name: str) -> None:
        """Power off: all that runs there ends at once, without a word."""
        node = self._nodes.pop(name)
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for each in (raylet, *raylet.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._cluster.remove_node(node, allow_graceful=False)

    def _add(self, name: str, address: str, **options: object) -> None:
        self._nodes[name] = self._cluster.add_node(
            wait=False, labels={"kind": name}, node_ip_address=address, **self._common, **options
        )

    def actors(self, *kinds: str) -> list[psutil.Process]:
        """Living processes with one of our actors inside; of any kind when none is named."""
        found = [
            each
            for each in psutil.Process(os.getpid()).children(recursive=True)
            if any(kind in title(each) for kind in kinds or ACTORS)
        ]
        return [each for each in found if each.status() != psutil.STATUS_ZOMBIE]

    def left(self) -> list[object]:
        """Processes of ours, actors and placement groups, once those that end have been waited
        for.
        """
        ends = time.monotonic() + END_SECONDS
        while (found := [*self.actors(), *self._known()]) and time.monotonic() < ends:
            time.sleep(0.05)  # processes of another one are waited for
        return found

    def _known(self) -> list[object]:
        """Actors and placement groups that Ray has not forgotten."""
        state = self._cluster.global_state
        actors, groups = state.actor_table(None), state.placement_group_table(None)
        return [
            *(each for each in actors.values() if each["State"] != "DEAD"),
            *(each for each in groups.values() if each["state"] != "REMOVED"),
        ]

    def shutdown(self) -> None:
        self._cluster.shutdown()


@contextmanager
def machines(**options: bool) -> Generator[Machines, None, None]:
    """For as long as the context lasts, in a folder of its own, so that ``auto`` finds no other."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_TMPDIR", folder)
        started = Machines(**options)
        try:
            yield started
        finally:
            started.shutdown()


def title(process: psutil.Process) -> str:
    """Its command line, which of a Ray worker names the actor; empty when it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""

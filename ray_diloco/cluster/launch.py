"""A hub and an engine for one run, from its settings."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from ray_diloco.cluster.engine import Engine
from ray_diloco.cluster.hub_service import HubAccess, open_hub, require_own_run
from ray_diloco.cluster.inproc import InprocEngine
from ray_diloco.cluster.placement import Placement
from ray_diloco.cluster.settings import RaySettings
from ray_diloco.cluster.shared_hub import SharedHub
from ray_diloco.hub.memory import MemoryStore
from ray_diloco.hub.settings import HubKind, HubSettings
from ray_diloco.protocol.clock import MICROS_PER_SECOND, Micros
from ray_diloco.protocol.run import RunIdentity
from ray_diloco.timing.times import Times, VirtualTimes, WallTimes
from ray_diloco.timing.virtual import VirtualClock
from ray_diloco.timing.wall import start_of_run


class Stage:
    """What a run is played on; a context manager that ends what it started. ``engine``: ray or
    inproc. ``virtual``: in virtual time, whose trace hash begins with ``header``. ``seed``: the
    run's. ``run``: whose repository it must be, unless it is new or the run ``resumes``.
    ``shared_hub``: a hub that runs already, in the place of what the settings say. ``gang``: the
    placement group that the actors of `engine=ray` belong into; without one they go where
    ``placement`` leads.
    """

    def __init__(
        self,
        ray: RaySettings,
        *,
        engine: str,
        virtual: bool,
        header: str = "",
        seed: int = 0,
        run: RunIdentity | None = None,
        resumes: bool = False,
        shared_hub: SharedHub | None = None,
        gang: Any = None,
        placement: Placement | None = None,
    ) -> None:
        self._shared_hub = shared_hub
        self._placement = placement
        self._placing: Any = None
        self._gang = gang
        self._ray = ray
        self._seed = seed
        self._run = run
        self._resumes = resumes
        self._engine = engine
        self._virtual = virtual
        self._header = header
        self._clock = VirtualClock((), header=header) if virtual and engine == "inproc" else None
        self._clock_actor: Any = None
        self._store: MemoryStore | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "Stage":
        if self._engine == "ray":
            from ray_diloco.cluster.ray_session import ray_session  # Ray only where it is used

            self._stack.enter_context(ray_session(self._ray))
            self._place()
            if self._virtual:
                from ray_diloco.cluster.clock_actor import clock_actor

                self._clock_actor = self._stack.enter_context(clock_actor(self._header))
        return self

    def _place(self) -> None:
        """ConfigError when an actor could never start, before any does."""
        if self._gang is None and self._placement is not None:
            from ray_diloco.cluster.placing import Placing

            self._placing = Placing(self._placement, grows=self._ray.autoscales)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def open_hub(
        self, settings: HubSettings, *, run_id: str, leads: bool, run_dir: Path
    ) -> HubAccess:
        """The repository of the run; see `cluster.hub_service.open_hub`. ForeignRunError when it is
        another's.
        """
        if self._shared_hub is not None and settings.kind is not HubKind.memory:
            return self._shared_hub.enter(settings, run_id=run_id, leads=leads)
        access = self._stack.enter_context(
            open_hub(
                settings,
                run_id=run_id,
                leads=leads,
                run_dir=run_dir,
                in_actor=self._engine == "ray",
                host=self._clock_actor,
                clock=self._clock,
                seed=self._seed,
                restarts=self._ray.restarts,
            )
        )
        self._store = access.store
        if leads and self._run is not None and access.store is None:
            require_own_run(settings, access, self._run, resumes=self._resumes)
        return access

    def open_engine(self, run_dir: Path, *, log_level: str) -> Engine:
        """An engine that has not started."""
        if self._engine == "inproc":
            return InprocEngine(self._open_times, store=self._store)
        from ray_diloco.cluster.crew import Crew  # Ray only where it is used
        from ray_diloco.cluster.ray_engine import RayEngine

        return RayEngine(
            self._open_times,
            Crew(run_dir=run_dir, log_level=log_level, gang=self._gang, placing=self._placing),
            start_seconds=self._ray.start_seconds,
            restarts=self._ray.restarts,
        )

    def places(self) -> list[str]:
        """Which actors go to which machine of the Ray, a line for each, when it is entered."""
        return self._placing.told() if self._placing is not None else []

    def trace_hash(self) -> str | None:
        """What happened in virtual time, as one hash; None in wall time."""
        if self._clock_actor is not None:
            from ray_diloco.cluster.clock_actor import trace_hash_of

            return trace_hash_of(self._clock_actor)
        return self._clock.trace_hash() if self._clock is not None else None

    def _open_times(self, starts: Mapping[str, Micros]) -> Times:
        if self._clock_actor is not None:
            from ray_diloco.cluster.clock_actor import remote_times

            return remote_times(self._clock_actor, starts)
        if self._clock is None:
            since = self._run.since if self._run is not None else 0
            return WallTimes(started_at=start_of_run() - since / MICROS_PER_SECOND)
        for participant, at in starts.items():
            self._clock.register(participant, at)
        return VirtualTimes(clock=self._clock)

"""A hub and an engine for one run, from its settings."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from ray_diloco.cluster.engine import Engine
from ray_diloco.cluster.hub_service import HubAccess, open_hub, require_own_run
from ray_diloco.cluster.inproc import InprocEngine
from ray_diloco.cluster.settings import RaySettings
from ray_diloco.hub.memory import MemoryStore
from ray_diloco.hub.settings import HubSettings
from ray_diloco.protocol.clock import Micros
from ray_diloco.protocol.run import RunIdentity
from ray_diloco.timing.times import Times, VirtualTimes, WallTimes
from ray_diloco.timing.virtual import VirtualClock
from ray_diloco.timing.wall import start_of_run


class Stage:
    """What a run is played on; a context manager that ends what it started. ``engine``: ray or
    inproc. ``virtual``: in virtual time, whose trace hash begins with ``header``. ``seed``: the
    run's. ``run``: whose repository it must be, unless it is new or the run ``resumes``.
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
    ) -> None:
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
            if self._virtual:
                from ray_diloco.cluster.clock_actor import clock_actor

                self._clock_actor = self._stack.enter_context(clock_actor(self._header))
        return self

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
        from ray_diloco.cluster.ray_engine import RayEngine  # Ray only where it is used

        return RayEngine(self._open_times, run_dir=run_dir, log_level=log_level)

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
            return WallTimes(started_at=start_of_run())
        for participant, at in starts.items():
            self._clock.register(participant, at)
        return VirtualTimes(clock=self._clock)

"""Where the participants of a run get their ports: one value that can travel to each of them."""

import secrets
from dataclasses import dataclass
from typing import Protocol

from ray_diloco.protocol.clock import Port
from ray_diloco.protocol.seeds import seed_of, seeded
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.virtual import VirtualClock
from ray_diloco.timing.wall import WallPort


class Times(Protocol):
    """The time that a run lives in."""

    @property
    def repeatable(self) -> bool:
        """What participants are told from outside, at moments that nobody can repeat, would spoil
        it.
        """
        ...

    def port(self, participant: str, *, profile: NodeProfile | None, seed: int) -> Port:
        """A participant's port. ``profile``: how fast it is. ``seed``: the run's, for its
        jitter.
        """
        ...

    def nonce(self, participant: str, *, seed: int, incarnation: int) -> str:
        """What tells this incarnation of a node from every other."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTimes:
    """The machine's time, counted from ``started_at`` in Unix seconds."""

    started_at: float

    @property
    def repeatable(self) -> bool:
        return False

    def port(self, participant: str, *, profile: NodeProfile | None, seed: int) -> Port:
        rng = seeded(seed, participant, "steps")
        return WallPort(profile=profile, rng=rng, started_at=self.started_at)

    def nonce(
        self,
        participant: str,  # noqa: ARG002 - drawn, not derived
        *,
        seed: int,  # noqa: ARG002
        incarnation: int,  # noqa: ARG002
    ) -> str:
        return secrets.token_hex(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTimes:
    """Simulated time; all participants are threads of the process that owns the clock."""

    clock: VirtualClock

    @property
    def repeatable(self) -> bool:
        return True

    def port(self, participant: str, *, profile: NodeProfile | None, seed: int) -> Port:
        rng = seeded(seed, participant, "steps")
        return self.clock.port(participant, profile=profile, rng=rng)

    def nonce(self, participant: str, *, seed: int, incarnation: int) -> str:
        return f"{seed_of(seed, participant, f'nonce {incarnation}'):016x}"

"""A node that may not train yet: what it looks for, and how long it looks away."""

from ray_diloco.node.coordinator import Coordinator
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.performer import Performer
from ray_diloco.protocol.clock import Micros, Port, micros
from ray_diloco.protocol.settings import DilocoSettings


class Waiting:
    """One stretch between two local steps, from ``began`` on. ``max_seconds``: of the run."""

    def __init__(
        self,
        coordinator: Coordinator,
        performer: Performer,
        exchange: Exchange,
        port: Port,
        *,
        settings: DilocoSettings,
        max_seconds: float | None,
    ) -> None:
        self._coordinator = coordinator
        self._performer = performer
        self._exchange = exchange
        self._port = port
        self._settings = settings
        self._max_seconds = max_seconds
        self.began = port.now()

    def is_over(self) -> bool:
        """Whether the coordinator lets the node train, once what may be installed is."""
        if self._coordinator.waits_for is not None:
            self._performer.perform(self._coordinator.settle(now=self._port.now()))
        return self._coordinator.waits_for is None

    def too_long(self) -> bool:
        """No global has come in the time that one may take."""
        patience = micros(self._settings.bootstrap_timeout)
        waited = self._port.now() - self.began
        return self._coordinator.waits_for == "global" and waited >= patience

    def wait(self) -> None:
        """Until a lane ends, or it is time to look again."""
        if self._coordinator.waits_for == "merge":
            self._performer.beat_when_due()
        self._port.wait(self._next_look())
        self._performer.deliver()

    def _next_look(self) -> Micros | None:
        """How long to wait for a lane to end, at most. While a poll is under way, the time of the
        next one, which may be over already, does not count.
        """
        coordinator = self._coordinator
        match coordinator.waits_for:
            case "global":
                ends = Micros(self.began + micros(self._settings.bootstrap_timeout))
            case "merge":
                ends = self._next_sign()
            case _:
                return None
        return ends if coordinator.polling else min(coordinator.next_poll, ends)

    def _next_sign(self) -> Micros:
        """When a node that waits for a merge shows that it lives, or ends."""
        due, most = self._exchange.beat_due, self._max_seconds
        if self._performer.beating or self._coordinator.uploading:
            due = Micros(self._port.now() + micros(self._settings.node_timeout))
        return due if most is None else min(due, micros(most))

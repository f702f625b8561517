"""A node that trains no more: the rest is sent, a goodbye said, a lane at a time waited for."""

from collections.abc import Callable
from typing import Any

from ray_diloco.node.coordinator import Coordinator
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.performer import Performer
from ray_diloco.protocol.clock import Lane, Micros, Port

DEPART = "depart"


class LaneUnfinished(Exception):
    """The deadline came before the lane's end, or nobody wants to know it any more."""


def finish_lane(
    port: Port,
    name: str,
    lane: Lane,
    *,
    deadline: Micros | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> Any:
    """Run a lane and wait for its value. Other lanes may end meanwhile; at these moments nobody
    waits for what they found. LaneUnfinished; and what the lane raises.
    """
    port.start(name, lane)
    while deadline is None or port.now() < deadline:
        if not wanted():
            break
        for outcome in port.collect():
            if outcome.name == name:
                if outcome.error is not None:
                    raise outcome.error
                return outcome.value
        port.wait(deadline)
    raise LaneUnfinished(name)


def say_goodbye(exchange: Exchange, port: Port, *, last_local_step: int, patience: Micros) -> bool:
    """Say that the node is done; False when there was not time enough."""
    deadline = Micros(port.now() + patience)
    depart = exchange.depart(last_local_step=last_local_step)
    try:
        finish_lane(port, DEPART, depart, deadline=deadline)
    except LaneUnfinished:
        return False
    return True


def send_the_rest(
    coordinator: Coordinator, performer: Performer, port: Port, deadline: Micros
) -> None:
    """Hand over what is unsent, a fragment at a time; again after a refusal, while time is left."""
    _await_upload(coordinator, performer, port, deadline)
    while not coordinator.uploading and port.now() < deadline:
        actions = coordinator.finish()
        if not actions:
            return
        performer.perform(actions)
        _await_upload(coordinator, performer, port, deadline)


def _await_upload(
    coordinator: Coordinator, performer: Performer, port: Port, deadline: Micros
) -> None:
    while coordinator.uploading and port.now() < deadline:
        port.wait(deadline)
        performer.deliver()

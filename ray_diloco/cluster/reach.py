"""Where the embedded hub of a Ray cluster listens, and by which address others find it."""

import logging
from dataclasses import replace
from urllib.parse import urlsplit

from ray.util import get_node_ip_address

from ray_diloco.cluster.placing import machines
from ray_diloco.hub.listening import is_loopback, is_unspecified
from ray_diloco.hub.settings import HubSettings

logger = logging.getLogger(__name__)


def listening(settings: HubSettings) -> HubSettings:
    """With a host that every machine of this Ray reaches: what the settings say, unless that is
    loopback, which reaches this machine alone, and there are others.
    """
    if not is_loopback(settings.host) or not _has_others():
        return settings
    address = _own_address()
    logger.info("hub.host=%s reaches one machine; listening on %s", settings.host, address)
    return replace(settings, host=address)


def told(endpoint: str) -> str:
    """What clients on any machine are told of a hub that listens at ``endpoint`` here."""
    parts = urlsplit(endpoint)
    if not is_unspecified(parts.hostname or ""):
        return endpoint
    address = _own_address()
    host = f"[{address}]" if ":" in address else address
    return f"{parts.scheme}://{host}:{parts.port}"


def _has_others() -> bool:
    """Whether somebody is on another machine, such as this process over a Ray client."""
    addresses = {each.address for each in machines()}
    return len({*addresses, get_node_ip_address()}) > 1


def _own_address() -> str:
    return next(each.address for each in machines() if each.here)

"""Addresses of this machine: who reaches them, and whether they can be listened on."""

import errno
import ipaddress
import socket

from ray_diloco.errors import ConfigError


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    return host == "localhost" or _of(host, "is_loopback")


def is_unspecified(host: str) -> bool:
    """Whether it stands for all addresses of this machine, and is none itself."""
    return _of(host, "is_unspecified")


def _of(host: str, kind: str) -> bool:
    try:
        return getattr(ipaddress.ip_address(host), kind)
    except ValueError:
        return False


def require_address(host: str, port: int) -> None:
    """ConfigError for ``hub.host`` or ``hub.port`` unless a hub could listen there now."""
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in places:
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        taken = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        if taken and port:
            raise ConfigError(
                "hub.port", port, f"expected a free port on {host}, or 0 for any: {reason}"
            ) from None
        raise ConfigError(
            "hub.host", host, f"expected an address of this machine, such as 127.0.0.1: {reason}"
        ) from None

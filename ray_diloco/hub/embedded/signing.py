"""Addresses that are themselves the permission to use them, for a while."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from urllib.parse import urlencode

from aiohttp import web

from ray_diloco.hub.embedded.answers import Refused


class Signer:
    """Signs paths with a key that lives as long as the process. ``seconds``: life of an address."""

    def __init__(self, *, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._key = secrets.token_bytes(32)
        self._seconds = seconds
        self._now = now

    def signed(self, path: str, *, size: int) -> str:
        """Path and query of an address by which so many bytes may be sent."""
        expires = int(self._now() + self._seconds)
        query = {"size": size, "expires": expires, "signature": self._mark(path, size, expires)}
        return f"{path}?{urlencode(query)}"

    def check(self, request: web.Request) -> int:
        """The size that the address permits. Refused with 403."""
        query = request.query
        try:
            size, expires = int(query["size"]), int(query["expires"])
        except (KeyError, ValueError):
            raise Refused(403, "Unsigned", "this address is not signed") from None
        mark = self._mark(request.path, size, expires)
        if not hmac.compare_digest(mark.encode(), query.get("signature", "").encode()):
            raise Refused(403, "Unsigned", "this address was not signed by this hub")
        if self._now() >= expires:
            raise Refused(403, "Expired", "this address has expired")
        return size

    def _mark(self, path: str, size: int, expires: int) -> str:
        content = f"{path}\n{size}\n{expires}".encode()
        return hmac.new(self._key, content, hashlib.sha256).hexdigest()

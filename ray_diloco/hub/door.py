"""The Hub's client with one endpoint and one token: calls bounded, errors sorted, counted."""

import threading
from collections.abc import Callable
from typing import TypeVar

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import build_hf_headers

from ray_diloco.errors import HubError, PermanentHubError, TransientHubError
from ray_diloco.hub.faults import one_line
from ray_diloco.hub.repository import Traffic
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.transport import Timeouts, calling

T = TypeVar("T")


class HubDoor:
    """The client with one endpoint and one token: each call bounded in time, its errors sorted."""

    def __init__(
        self, *, endpoint: str, token: Secret | None, timeouts: Timeouts | None = None
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.timeouts = timeouts or Timeouts()
        self.traffic = Traffic()
        self._token = token
        self._lock = threading.Lock()

    @property
    def plain_token(self) -> str | bool:
        """The token for the client; False, never None, so that it does not look for another one."""
        return self._token.reveal() if self._token else False

    @property
    def api(self) -> HfApi:
        return HfApi(endpoint=self.endpoint, token=self.plain_token, library_name="ray_diloco")

    @property
    def headers(self) -> dict[str, str]:
        """Headers for requests that the client has no method for."""
        headers = build_hf_headers(token=self.plain_token, library_name="ray_diloco")
        return {**headers, "Accept-Encoding": "identity"}

    def ask(self, call: Callable[[], T], *, seconds: float | None = None) -> T:
        """What ``call`` gives, within ``seconds``. HubError, free of what the client holds."""
        fault: HubError
        try:
            with calling(
                self.timeouts,
                seconds=seconds or self.timeouts.total,
                has_token=self._token is not None,
                count_request=lambda: self.count(requests=1),
            ):
                return call()
        except HubError as error:
            fault = error
        except HFValidationError as error:
            fault = PermanentHubError(one_line(str(error)))
        except (
            httpx2.HTTPError,
            httpx2.InvalidURL,
            ConnectionError,
            ValueError,
            KeyError,
        ) as error:
            fault = TransientHubError(
                f"{self.endpoint}: answer not understood: {one_line(str(error))}"
            )
        # Neither context nor traceback lead to the client's frames and requests.
        fault.__context__ = None
        raise fault.with_traceback(None)

    def count(self, *, requests: int = 0, up: int = 0, down: int = 0, commits: int = 0) -> None:
        with self._lock:
            self.traffic.requests += requests
            self.traffic.bytes_up += up
            self.traffic.bytes_down += down
            self.traffic.commits += commits

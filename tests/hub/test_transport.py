"""Which way a request takes, and that others in the process see no difference."""

from collections.abc import Iterator

import httpx2
import pytest

from ray_diloco.errors import RayDilocoError
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.transport import make_client, proxy_for


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "internal.example")
    return


@pytest.mark.usefixtures("proxied")
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "10.1.2.3", "internal.example"])
def test_a_near_host_is_reached_without_a_proxy(host: str) -> None:
    assert proxy_for("http", host) is None


@pytest.mark.usefixtures("proxied")
def test_a_far_host_is_reached_by_the_proxy_of_the_environment() -> None:
    assert proxy_for("https", "huggingface.co") == "http://proxy:3128"


def test_others_get_answers_and_errors_as_they_are(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with make_client() as client:
        with EmbeddedHub(tmp_path_factory.mktemp("hub")) as hub:
            url = f"{hub.endpoint}/api/whoami-v2"
            assert client.get(url).status_code == 401
        with pytest.raises(httpx2.ConnectError) as caught:
            client.get(url)
    assert not isinstance(caught.value, RayDilocoError)

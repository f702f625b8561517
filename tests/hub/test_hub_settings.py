import socket

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.hub.listening import require_address
from ray_diloco.hub.settings import HubSettings


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("port", [-1, 65536, 99999]),
        ("host", ["", " "]),
        (
            "endpoint",
            ["", "hello", "127.0.0.1:80", "ftp://x", "http://", "http://x:y", "http://[x"],
        ),
        ("repo_id", ["", "/c", "a/", "a/b/c", "a b/c", "ä/b", "a--b/c", "a/c..d", "-a/b", "a/b."]),
        ("repo_id", ["a" * 97, "a/" + "b" * 95]),
        (
            "branch",
            ["", "a b", "a..b", "a//b", "/a", "a/", "-a", "a.lock", "ä", "a~1", "a:b", "@{"],
        ),
    ],
)
def test_what_the_hub_would_refuse_is_refused_by_its_setting(field, values):
    for value in values:
        with pytest.raises(ConfigError, match="expected") as caught:
            HubSettings(**{field: value}).check()
        assert (caught.value.setting, caught.value.value) == (f"hub.{field}", value)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("port", [0, 80, 65535]),
        ("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0"]),
        ("endpoint", ["http://127.0.0.1:80", "https://huggingface.co/", "http://[::1]:80", None]),
        ("repo_id", ["me/run", "run", "_a.b-c/D_1", None]),
        ("branch", ["main", "runs/1", "v1.0-rc_2"]),
    ],
)
def test_what_the_hub_takes_is_taken(field, values):
    for value in values:
        HubSettings(**{field: value}).check()


def test_a_wrong_kind_of_fault_is_told_the_nearest_one():
    with pytest.raises(ConfigError, match="did you mean reset"):
        HubSettings(faults={"resets": 0.1}).check()


@pytest.mark.parametrize("host", ["256.1.1.1", "no.such.host.invalid", "192.0.2.7", "a" * 70])
def test_a_host_that_is_not_this_machine_is_named(host):
    with pytest.raises(ConfigError, match="expected an address of this machine") as caught:
        require_address(host, 0)
    assert caught.value.setting == "hub.host"


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=r"expected a free port on 127\.0\.0\.1") as caught:
            require_address("127.0.0.1", port)
    assert (caught.value.setting, caught.value.value) == ("hub.port", port)
    require_address("127.0.0.1", port)

"""Which addresses reach how far."""

import pytest

from ray_diloco.hub.listening import is_loopback, is_unspecified


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_reaches_one_machine(host):
    assert is_loopback(host)
    assert not is_unspecified(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_all_addresses_are_none_that_can_be_told(host):
    assert is_unspecified(host)
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.5", "head.cluster", ""])
def test_an_address_of_the_network_is_neither(host):
    assert not is_unspecified(host)
    assert not is_loopback(host)

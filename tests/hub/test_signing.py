"""An address is the permission for one path, one size and a while."""

import pytest
from aiohttp.test_utils import make_mocked_request

from ray_diloco.hub.embedded.answers import Refused
from ray_diloco.hub.embedded.signing import Signer

PATH = f"/blobs/{'a' * 64}"


class Moments:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refusal(signer: Signer, address: str) -> str:
    with pytest.raises(Refused) as caught:
        signer.check(make_mocked_request("PUT", address))
    assert caught.value.status == 403
    return caught.value.message


def test_an_address_permits_its_path_and_size_until_it_expires() -> None:
    moments = Moments()
    signer = Signer(seconds=10, now=moments)
    address = signer.signed(PATH, size=30)
    moments.now += 9
    assert signer.check(make_mocked_request("PUT", address)) == 30
    moments.now += 1
    assert "expired" in refusal(signer, address)


@pytest.mark.parametrize(
    ("part", "other"), [("size=30", "size=31"), ("expires=110", "expires=111"), ("aaa?", "aab?")]
)
def test_no_part_of_an_address_can_be_changed(part: str, other: str) -> None:
    signer = Signer(seconds=10, now=Moments())
    address = signer.signed(PATH, size=30)
    assert part in address
    assert "not signed by this hub" in refusal(signer, address.replace(part, other))


def test_each_hub_signs_for_itself() -> None:
    moments = Moments()
    address = Signer(seconds=10, now=moments).signed(PATH, size=30)
    assert "not signed by this hub" in refusal(Signer(seconds=10, now=moments), address)

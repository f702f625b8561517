import json
from typing import Any

import pytest

from ray_diloco.errors import ContentError
from ray_diloco.protocol.node_card import NodeCard

PATH = "nodes/n1/node.json"
FIELDS: dict[str, Any] = {"nonce": "abc", "started": "2030-01-01", "state": "active"}


def test_a_claim_reads_back():
    card = NodeCard(nonce="abc", started="then", state="done", run_id="r1", last_local_step=40)
    assert NodeCard.from_json(card.to_json(), path=PATH) == card
    assert card.to_json().endswith(b"}\n")


def test_a_claim_without_additions_is_accepted():
    card = NodeCard.from_json(json.dumps(FIELDS).encode(), path=PATH)
    assert card == NodeCard(nonce="abc", started="2030-01-01", state="active")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"', b"5", b"null", b"\xff", b"[" * 200_000])
def test_bytes_that_are_no_claim_are_refused_with_the_path(data: bytes):
    with pytest.raises(ContentError, match=PATH):
        NodeCard.from_json(data, path=PATH)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nonce", None),
        ("nonce", 5),
        ("started", 5),
        ("state", "sleeping"),
        ("state", ["active"]),
        ("last_local_step", "40"),
        ("last_local_step", True),
        ("last_local_step", -1),
        ("last_local_step", 1.5),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_with_the_path(field: str, value: object):
    with pytest.raises(ContentError, match=PATH):
        NodeCard.from_json(json.dumps(FIELDS | {field: value}).encode(), path=PATH)


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_a_missing_field_is_refused(field: str):
    fields = {key: value for key, value in FIELDS.items() if key != field}
    with pytest.raises(ContentError, match=PATH):
        NodeCard.from_json(json.dumps(fields).encode(), path=PATH)

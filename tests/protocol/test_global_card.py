import json
from typing import Any

import pytest

from ray_diloco.errors import GlobalError
from ray_diloco.protocol.delta_card import Identity
from ray_diloco.protocol.global_card import GlobalCard, NodeRow

PLAIN = {"algorithm": "dumb_diloco", "outer_step": 7}
ROW: dict[str, Any] = {"nonce": "abc", "last_local_step": 20, "seen_outer_step": 6}


def card_of(fields: dict[str, Any]) -> GlobalCard:
    return GlobalCard.from_json(json.dumps(fields).encode())


def test_the_plain_file_has_exactly_the_bytes_of_a_peer():
    card = GlobalCard(outer_step=7, updated_at="2030-01-01T00:00:00+00:00")
    assert card.to_json() == (
        b'{\n  "algorithm": "dumb_diloco",\n'
        b'  "model_file": "global/latest.safetensors",\n'
        b'  "optimizer": "nesterov_sgd",\n'
        b'  "outer_step": 7,\n'
        b'  "updated_at": "2030-01-01T00:00:00+00:00"\n}\n'
    )


def test_the_bootstrap_file_says_so_in_place_of_the_optimizer():
    card = GlobalCard(outer_step=0, updated_at="2030-01-01T00:00:00+00:00", bootstrap=True)
    assert card.to_json() == (
        b'{\n  "algorithm": "dumb_diloco",\n'
        b'  "bootstrap": "true",\n'
        b'  "model_file": "global/latest.safetensors",\n'
        b'  "outer_step": 0,\n'
        b'  "updated_at": "2030-01-01T00:00:00+00:00"\n}\n'
    )
    assert GlobalCard.from_json(card.to_json()) == card


def test_a_card_with_every_extension_reads_back():
    card = GlobalCard(
        outer_step=7,
        model_file="global/other.safetensors",
        updated_at="2030-01-01T00:00:00+00:00",
        run_id="r1",
        config_hash="c0ffee",
        publication_id="p9",
        master_id="m",
        master_epoch=3,
        model_sha256="ab" * 32,
        state_file="global/outer_state.safetensors",
        state_sha256="cd" * 32,
        round=(Identity("n1", "abc", 20), Identity("peer", None, 500)),
        nodes={
            "n1": NodeRow(
                nonce="abc",
                last_local_step=20,
                seen_outer_step=6,
                tokens=99,
                rejected=((10, "not finite"),),
                done=True,
            ),
            "peer": NodeRow(nonce=None, last_local_step=500, seen_outer_step=7),
        },
        tokens_total=99,
        stop="max_tokens",
        closed=True,
        since_state=((Identity("n2", "xyz", 10),), (Identity("n1", "abc", 20),)),
        state_notes={"ledger": "{}"},
    )
    data = card.to_json()
    assert GlobalCard.from_json(data) == card
    fields = json.loads(data)
    assert fields["protocol"] == 1
    assert data.decode() == json.dumps(fields, indent=2, sort_keys=True) + "\n"


def test_globals_are_ordered_by_epoch_before_step():
    assert GlobalCard(outer_step=3, master_epoch=2).version > GlobalCard(outer_step=9).version


def test_the_card_of_a_peer_is_accepted():
    card = card_of(PLAIN | {"optimizer": "nesterov_sgd", "updated_at": "now"})
    assert card == GlobalCard(outer_step=7, updated_at="now")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe\xfd",
        b"nonsense",
        b"[1, 2]",
        b'"text"',
        b"null",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"algorithm": "dumb_diloco", "outer_step": ' + b"9" * 5000 + b"}",
    ],
)
def test_bytes_that_are_not_a_json_object_are_refused(data: bytes):
    with pytest.raises(GlobalError):
        GlobalCard.from_json(data)


@pytest.mark.parametrize(
    "model_file",
    ["../secret.safetensors", "nodes/n1/delta_7.safetensors", "global/../x.safetensors", "/etc/x"],
)
def test_a_model_file_that_points_elsewhere_is_refused(model_file: str):
    with pytest.raises(GlobalError, match="model_file"):
        card_of(PLAIN | {"model_file": model_file})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("algorithm", "other"),
        ("algorithm", None),
        ("outer_step", None),
        ("outer_step", -1),
        ("outer_step", True),
        ("outer_step", "7"),
        ("outer_step", 7.0),
        ("outer_step", float("inf")),
        ("outer_step", 10**18),
        ("master_epoch", -1),
        ("master_epoch", False),
        ("tokens_total", 1.5),
        ("model_file", 3),
        ("updated_at", 3),
        ("run_id", ["r"]),
        ("publication_id", {}),
        ("model_sha256", 1),
        ("stop", True),
        ("round", 5),
        ("round", [["n1", "abc"]]),
        ("round", [["n1", "abc", "20"]]),
        ("round", [["n1", "abc", True]]),
        ("round", [["n1", 5, 20]]),
        ("round", [["../n1", "abc", 20]]),
        ("round", [["n1", "abc", float("inf")]]),
        ("since_state", {}),
        ("since_state", [["n1", "abc", 20]]),
        ("state_notes", ["ledger"]),
        ("state_notes", {"ledger": 5}),
        ("nodes", []),
        ("nodes", {"../n1": ROW}),
        ("nodes", {"n1": None}),
        ("nodes", {"n1": []}),
        ("nodes", {"n1": {}}),
        ("nodes", {"n1": ROW | {"nonce": 5}}),
        ("nodes", {"n1": ROW | {"last_local_step": "20"}}),
        ("nodes", {"n1": ROW | {"last_local_step": True}}),
        ("nodes", {"n1": ROW | {"last_local_step": -1}}),
        ("nodes", {"n1": ROW | {"seen_outer_step": float("inf")}}),
        ("nodes", {"n1": ROW | {"tokens": None}}),
        ("nodes", {"n1": ROW | {"rejected": 5}}),
        ("nodes", {"n1": ROW | {"rejected": [[1]]}}),
        ("nodes", {"n1": ROW | {"rejected": [["1", "why"]]}}),
        ("nodes", {"n1": ROW | {"rejected": [[1, 2]]}}),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(field: str, value: object):
    with pytest.raises(GlobalError):
        card_of(PLAIN | {field: value})


def test_a_missing_outer_step_is_refused_by_name():
    with pytest.raises(GlobalError, match="outer_step"):
        card_of({"algorithm": "dumb_diloco"})


def test_a_row_needs_only_its_nonce_and_steps():
    row = card_of(PLAIN | {"nodes": {"n1": ROW}}).nodes["n1"]
    assert row == NodeRow(nonce="abc", last_local_step=20, seen_outer_step=6)

import pytest

from ray_diloco.errors import DeltaError
from ray_diloco.protocol.delta_card import SHA256_PLACEHOLDER, DeltaCard
from ray_diloco.protocol.ranges import StepRanges

PATH = "nodes/n1/delta_500.safetensors"
PEER_HEADER = {
    "algorithm": "dumb_diloco",
    "node_id": "n1",
    "local_step": "500",
    "base_outer_step": "7",
}
FULL = DeltaCard(
    node_id="n1",
    local_step=500,
    base_outer_step=7,
    nonce="abc",
    covers=StepRanges.parse("1-20,25-500"),
    oldest_base_outer_step=5,
    codec="int8",
    tokens=12345,
    shard_tokens=67890,
    mean_loss=0.1 + 0.2,
    sha256="ab" * 32,
    schema="f00d",
    run_id="r1",
    sent_at="2030-01-01T00:00:00.000000+00:00",
    final=True,
)


def test_a_full_card_reads_back():
    header = FULL.header()
    assert all(isinstance(value, str) for value in header.values())
    assert DeltaCard.from_header(header, path=PATH) == FULL
    assert FULL.identity == ("n1", "abc", 500)


def test_the_header_begins_with_what_a_peer_reads():
    card = DeltaCard(node_id="n1", local_step=500, base_outer_step=7)
    assert PEER_HEADER.items() <= card.header().items()


def test_a_payload_hash_that_is_not_known_yet_takes_the_room_of_one():
    header = DeltaCard(node_id="n1", local_step=500, base_outer_step=7).header()
    assert header["sha256"] == SHA256_PLACEHOLDER
    assert len(SHA256_PLACEHOLDER) == len("ab" * 32)


def test_the_header_of_a_plain_peer_is_accepted():
    card = DeltaCard.from_header(PEER_HEADER, path=PATH)
    assert card == DeltaCard(node_id="n1", local_step=500, base_outer_step=7)
    assert card.identity == ("n1", None, 500)
    assert card.codec == "fp32"


def test_a_base_of_a_node_that_never_had_a_global_is_accepted():
    card = DeltaCard.from_header(PEER_HEADER | {"base_outer_step": "-1"}, path=PATH)
    assert card.base_outer_step == -1


def test_unknown_fields_are_ignored():
    assert DeltaCard.from_header(PEER_HEADER | {"later": "addition"}, path=PATH).local_step == 500


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("algorithm", "other"),
        ("node_id", "../n1"),
        ("node_id", ""),
        ("local_step", "+500"),
        ("local_step", "0500"),
        ("local_step", "5_00"),
        ("local_step", "500.0"),
        ("local_step", "-500"),
        ("local_step", "٥٠٠"),
        ("local_step", ""),
        ("base_outer_step", "-2"),
        ("base_outer_step", "-0"),
        ("base_outer_step", "--1"),
        ("base_outer_step", "x"),
        ("base_outer_step", "9" * 19),
        ("oldest_base_outer_step", "-2"),
        ("oldest_base_outer_step", "07"),
        ("tokens", "-1"),
        ("tokens", "many"),
        ("covers", "1-20,15-40"),
        ("covers", "1..500"),
        ("covers", "1-501"),
        ("mean_loss", "low"),
        ("nonce", ""),
        ("nonce", "x" * 129),
    ],
)
def test_a_malformed_field_is_refused_with_the_path(field: str, value: str):
    with pytest.raises(DeltaError) as caught:
        DeltaCard.from_header(PEER_HEADER | {field: value}, path=PATH)
    assert caught.value.path == PATH


@pytest.mark.parametrize("field", sorted(PEER_HEADER))
def test_a_missing_field_is_refused_by_name(field: str):
    header = {key: value for key, value in PEER_HEADER.items() if key != field}
    with pytest.raises(DeltaError, match=field):
        DeltaCard.from_header(header, path=PATH)


@pytest.mark.parametrize(
    "path",
    [
        "nodes/n2/delta_500.safetensors",
        "nodes/n1/delta_501.safetensors",
        "nodes/n1/delta_0500.safetensors",
        "global/latest.safetensors",
    ],
)
def test_a_header_that_disagrees_with_the_path_is_refused(path: str):
    with pytest.raises(DeltaError):
        DeltaCard.from_header(PEER_HEADER, path=path)


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_a_loss_that_is_not_finite_is_only_unknown(loss: str):
    assert DeltaCard.from_header(PEER_HEADER | {"mean_loss": loss}, path=PATH).mean_loss is None
